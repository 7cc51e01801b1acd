"""Three questions to a pipeline on a device: how much of its copies is hidden behind the step, what
share of the pinned copy's bandwidth does it reach, and for how long does the step stall?"""

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from in_time import NO_TIME, Figures, rows_in_time
from pipeline_steps import PHOTOS, ladder
from plain_jobs import plain_job

from fastloop.job import Job, check_support
from fastloop.launchers.single import Single
from fastloop.prepared import prepare
from fastloop.protocols import Benchmark, Placement
from fastloop.spans import bandwidth, mark, ms_between, now_ns, seconds_between
from fastloop.trial import run_instrumented
from fastloop.types import JobFailed, Setup, Tree

Spans = list[tuple[Any, Any]]
ARRAYS: Figures = {"dataset": "synthetic", "loader": "batch_sampler", "dataset__shape": [3, 64, 64]}
"""float32, gathered from memory: 12 MiB for 256."""
RESNET: Figures = {"model": "resnet18", "precision": "bf16"}
COPIED = 64 << 20


@dataclass
class Marks:
    """When the device began and ended each copy and each step of the last start."""

    copies: Spans = field(default_factory=list)
    steps: Spans = field(default_factory=list)


@dataclass(frozen=True)
class MarkedPlacement:
    """The same placement, with a mark before and behind each copy, in the stream that it is in."""

    placement: Placement
    marks: Marks

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        place, copies = self.placement.to(device), self.marks.copies

        def call(batch: Tree) -> Tree:
            start = mark(device)
            placed = place(batch)
            copies.append((start, mark(device)))
            return placed

        return call


@dataclass(frozen=True)
class MarkedBenchmark:
    """The same benchmark, with a mark before and behind each step."""

    benchmark: Benchmark
    marks: Marks
    limit: Any = "replay"

    def check(self, *given: Any) -> None:
        self.benchmark.check(*given)

    def start(self, place: Callable[[Tree], Tree], setup: Setup) -> tuple[Callable, list]:
        consume, losses = self.benchmark.start(place, setup)
        self.marks.copies.clear()
        self.marks.steps.clear()

        def step(batch: Tree) -> None:
            start = mark(setup.device)
            consume(batch)
            self.marks.steps.append((start, mark(setup.device)))

        return step, losses


def hidden_jobs(device: str, count: int, batch_size: int) -> dict[str, Job]:
    """Batches ahead, from every kind of memory, under a small and under a larger step."""
    by = "stream" if device.startswith("cuda") else "thread"
    given = ARRAYS | {"device": device, "dataset__count": count, "batch_size": batch_size}
    given |= {"benchmark": "training", "epochs": 1, "device_prefetch": 2, "device_prefetch_by": by}
    kinds: dict[str, Figures] = {"pageable": {"placement__non_blocking": True}}
    if device.startswith("cuda"):
        moved = {"placement__non_blocking": True}
        kinds |= {"pin_memory": {"pin_memory": True} | moved, "ring": {"pinned_buffers": 4} | moved}
    models: dict[str, Figures] = {"toynet": {}, "resnet18 bf16": RESNET}
    return {
        f"{kind}, {model}": plain_job(**given | kinds[kind] | models[model])
        for model in models
        for kind in kinds
    }


def hidden(jobs: Mapping[str, Job], seconds: float, keep: Callable[[list[Figures]], None]) -> None:
    """A row a job: the share of its copies' time in which a step ran, from CUDA events."""
    start_ns = now_ns()
    rows: dict[str, Figures] = {name: {"name": name, "why": NO_TIME} for name in jobs}
    keep([*rows.values()])
    for name, job in jobs.items():
        if seconds_between(start_ns, now_ns()) > seconds:
            break
        try:
            rows[name] = {"name": name} | Single(isolation="inline").call(_hidden, job)
        except JobFailed as failure:
            rows[name]["why"] = failure.reason
        keep([*rows.values()])
        gc.collect()


def _hidden(job: Job) -> Figures:
    check_support(job)
    prepared, marks = prepare(job.dataset, job.loader.store, job.collate.tolerant), Marks()
    ((name, benchmark),) = job.benchmark.items()
    watched = replace(
        job,
        placement=MarkedPlacement(job.placement, marks),
        benchmark={name: MarkedBenchmark(benchmark, marks)},
    )
    run_instrumented(watched, prepared, name)
    first = marks.copies[0][0]  # a batch is copied before its step
    copies, steps = ([_since(first, one) for one in all_] for all_ in (marks.copies, marks.steps))
    copied = sum(stop - start for start, stop in copies)
    return {
        "hidden_share": overlap(copies, steps) / copied if copied else None,
        "copy_ms": copied / len(copies),
        "step_ms": sum(stop - start for start, stop in steps) / len(steps),
        "batches": len(steps),
    }


def overlap(copies: list[tuple[float, float]], steps: list[tuple[float, float]]) -> float:
    """How much of the copies lies in steps, of which no two are at the same time."""
    return sum(
        max(0.0, min(stop, end) - max(start, begin))
        for start, stop in copies
        for begin, end in steps
    )


def _since(first: Any, span: tuple[Any, Any]) -> tuple[float, float]:
    return ms_between(first, span[0]), ms_between(first, span[1])


def copy_limit(device: torch.device) -> float:
    """Bytes a second from pinned memory to the device; on a CPU from memory to memory."""
    host = torch.ones(COPIED, dtype=torch.uint8)
    host = host.pin_memory() if device.type == "cuda" else host
    return _copied(host, device)


def _copied(host: torch.Tensor, device: torch.device) -> float:
    there = torch.empty_like(host, device=device)

    def copy() -> int:
        there.copy_(host, non_blocking=True)
        return host.nbytes

    return bandwidth(copy, device, 250_000_000)


def bandwidth_jobs(device: str, count: int, batch_size: int) -> dict[str, Job]:
    """Every batch is moved, and nothing else is done with it."""
    given = ARRAYS | {"device": device, "dataset__count": count, "batch_size": batch_size}
    given |= {"benchmark": "traversal", "epochs": 2}
    ways: dict[str, Figures] = {"naive": {}}
    if device.startswith("cuda"):
        pinned = {"pin_memory": True, "placement__non_blocking": True}
        ring = {"pinned_buffers": 4, "placement__non_blocking": True}
        stream = {"device_prefetch": 2, "device_prefetch_by": "stream"}
        thread = {"device_prefetch": 2, "device_prefetch_by": "thread"}
        workers = {"num_workers": workers_here()}
        ways |= {"pin_memory": pinned, "ring": ring, "pin_memory, stream": pinned | stream}
        ways |= {"ring, stream": ring | stream, "ring, thread": ring | thread}
        ways |= {"pin_memory, stream, workers": pinned | stream | workers}
    else:
        ways["thread"] = {"device_prefetch": 2, "device_prefetch_by": "thread"}
    return {name: plain_job(**given | way) for name, way in ways.items()}


def bandwidths(
    jobs: Mapping[str, Job],
    device: torch.device,
    seconds: float,
    keep: Callable[[list[Figures]], None],
) -> None:
    """A row a job and one for the bare copy from pageable memory, with the share of the limit."""
    limit = copy_limit(device)
    pageable = _copied(torch.ones(COPIED, dtype=torch.uint8), device)
    bare = [
        {"name": "64 MiB, pinned", "mb_per_s": limit / 1e6, "share_of_pinned_copy": 1.0},
        {
            "name": "64 MiB, pageable",
            "mb_per_s": pageable / 1e6,
            "share_of_pinned_copy": pageable / limit,
        },
    ]

    def with_shares(rows: list[Figures]) -> None:
        for row in rows:
            if "mb_per_s" in row:
                row["share_of_pinned_copy"] = row["mb_per_s"] * 1e6 / limit
        keep([*bare, *rows])

    rows_in_time(jobs, seconds, with_shares)


def stall_jobs(device: str, **more: Any) -> dict[str, Job]:
    """Seed 002's ladder under resnet18 at bf16, with as many workers as there are cores for."""
    photos = {name: value for name, value in PHOTOS.items() if not name.startswith("model__")}
    given = photos | RESNET | {"device": device}
    crowd = {"num_workers": workers_here()}
    return {
        name: plain_job(**given | step | (crowd if "num_workers" in step else {}) | more)
        for name, step in ladder(device).items()
    }


def workers_here() -> int:
    """One core is left for the loop."""
    return max(1, min(12, len(os.sched_getaffinity(0)) - 1))
