"""The three headlines of a pipeline on a device: the share of its copies that is hidden behind the
step, the share of the pinned copy's bandwidth that it reaches, and the time that the step
stalls."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from experiments.lib.copy_bandwidth import pageable_copy_bandwidth, pinned_copy_bandwidth
from experiments.lib.time_budget import NO_TIME, Figures, measure_in_time
from fastloop.core.benchmark import Benchmark, Session, Setup
from fastloop.core.device_time import mark, ms_between
from fastloop.core.protocols import Placement
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import JobFailed, Tree
from fastloop.data.prepare_dataset import prepare
from fastloop.options.launcher.single import SingleLauncher
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

Spans = list[tuple[Any, Any]]


@dataclass
class Marks:
    """CUDA events at the beginning and the end of each copy and each step since the last start."""

    copies: Spans = field(default_factory=list)
    steps: Spans = field(default_factory=list)


@dataclass(frozen=True)
class MarkingPlacement:
    """A placement that records an event before and after each copy, in the copy's own stream."""

    placement: Placement
    marks: Marks

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """The placement's function, with an event before and after each call."""
        place, copies = self.placement.to(device), self.marks.copies

        def call(batch: Tree) -> Tree:
            start = mark(device)
            batch_on_device = place(batch)
            copies.append((start, mark(device)))
            return batch_on_device

        return call


@dataclass(frozen=True)
class MarkingBenchmark:
    """A benchmark that records an event before and after each step."""

    benchmark: Benchmark
    marks: Marks
    limit: Any = "replay"

    def check(self, *arguments: Any) -> None:
        """Check the model and the samples as the benchmark does."""
        self.benchmark.check(*arguments)

    def session(self, setup: Setup) -> "MarkingSession":
        """The benchmark's session, with events around its steps."""
        return MarkingSession(self.benchmark.session(setup), self.marks, setup.device)


@dataclass(frozen=True)
class MarkingSession:
    """A session that records an event before and after each step."""

    session: Session
    marks: Marks
    device: torch.device
    ddp: ClassVar[None] = None

    def start(self, place: Callable[[Tree], Tree]) -> tuple[Callable, list]:
        """The session's step, with an event before and after each call, and its losses."""
        consume, losses = self.session.start(place)
        self.marks.copies.clear()
        self.marks.steps.clear()

        def step(batch: Tree) -> None:
            start = mark(self.device)
            consume(batch)
            self.marks.steps.append((start, mark(self.device)))

        return step, losses


def measure_hidden_shares(
    jobs: Mapping[str, Job], seconds: float, keep: Callable[[list[Figures]], None]
) -> None:
    """A row for each job: the share of its copies' time in which a step ran, by CUDA events."""
    start_ns = now_ns()
    rows: dict[str, Figures] = {name: {"name": name, "why": NO_TIME} for name in jobs}
    keep([*rows.values()])
    for name, job in jobs.items():
        if seconds_between(start_ns, now_ns()) > seconds:
            break
        try:
            rows[name] = {"name": name} | SingleLauncher(isolation="inline").call(
                _hidden_share, job
            )
        except JobFailed as failure:
            rows[name]["why"] = str(failure)
        keep([*rows.values()])
        gc.collect()


def _hidden_share(job: Job) -> Figures:
    check_support(job)
    prepared, marks = prepare(job.dataset, job.loader.store, job.collate.tolerant), Marks()
    ((name, benchmark),) = job.benchmark.items()
    marking = replace(
        job,
        # A repeated epoch would start the recording anew.
        min_window_s=0.0,
        placement=MarkingPlacement(job.placement, marks),
        benchmark={name: MarkingBenchmark(benchmark, marks)},
    )
    run_instrumentation(marking, prepared, name)
    # A batch is copied before its step, so the first event is a copy's.
    origin = marks.copies[0][0]
    copies = [_since(origin, span) for span in marks.copies]
    steps = [_since(origin, span) for span in marks.steps]
    copy_ms = sum(stop - start for start, stop in copies)
    return {
        "hidden_share": overlap(copies, steps) / copy_ms if copy_ms else None,
        "copy_ms": copy_ms / len(copies),
        "step_ms": sum(stop - start for start, stop in steps) / len(steps),
        "batches": len(steps),
    }


def overlap(copies: list[tuple[float, float]], steps: list[tuple[float, float]]) -> float:
    """The time during which a copy and a step run at once. Steps never overlap each other."""
    return sum(
        max(0.0, min(stop, end) - max(start, begin))
        for start, stop in copies
        for begin, end in steps
    )


def _since(origin: Any, span: tuple[Any, Any]) -> tuple[float, float]:
    return ms_between(origin, span[0]), ms_between(origin, span[1])


def measure_bandwidths(
    jobs: Mapping[str, Job],
    device: torch.device,
    seconds: float,
    keep: Callable[[list[Figures]], None],
) -> None:
    """A row for each job, after two rows for the bare copy from pinned and from pageable memory.
    All have their share of the pinned copy's bandwidth."""
    limit = pinned_copy_bandwidth(device)
    pageable = pageable_copy_bandwidth(device)
    bare = [
        {"name": "64 MiB, pinned", "mb_per_s": limit / 1e6, "share_of_pinned_copy": 1.0},
        {
            "name": "64 MiB, pageable",
            "mb_per_s": pageable / 1e6,
            "share_of_pinned_copy": pageable / limit,
        },
    ]

    def keep_with_shares(rows: list[Figures]) -> None:
        for row in rows:
            if "mb_per_s" in row:
                row["share_of_pinned_copy"] = row["mb_per_s"] * 1e6 / limit
        keep([*bare, *rows])

    measure_in_time(jobs, seconds, keep_with_shares)
