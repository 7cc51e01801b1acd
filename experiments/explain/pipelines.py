"""The pipelines that are judged: those with one stage made slow by a known amount, and healthy
ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from experiments.explain.delays import Kind
from experiments.explain.queueing import epoch_seconds

STEP_S, LONG_STEP_S = 0.008, 0.032
"""Seconds of a step. A long one hides the time of the workers themselves, about 2 ms per batch."""
BATCH_SIZE = 8
BATCHES = 12
EVERY = 6
"""If only some batches are slow, every EVERY-th one is."""
RATIOS = (0.3, 1.0, 3.0)
WORKERS = (0, 1, 2)
WORTH = 0.10
"""The least share of the epoch for which a wait is worth naming."""
KINDS: tuple[Kind, ...] = ("sleep", "with_lock", "without_lock")
FLOAT_BYTES = 4
SETTINGS = {
    "benchmark": "training",
    "torch_threads": 1,
    "tracker": "none",
    "min_window_s": 0,
    "trials": 3,
    "try": 0,
    "batch_size": BATCH_SIZE,
}
MODULE = "experiments.explain.stages"
HEAVY_STEPS = ((1024, 1, 0), (2048, 1, 0), (4096, 1, 0), (2048, 4, 0), (2048, 1, 2))
"""(width, unevenness, workers) of each pipeline with a heavy or uneven step. Its samples take less
than 1 % of the time."""
THREADS, LOADS = (1, 2), (0, 2)
"""Each of these pipelines runs with each number of torch's threads, and beside each number of other
programs that compute."""

Stage = Literal["decode", "transform", "collate", "hand-off", "start-up", "step"]
OTHERS: tuple[tuple[Stage, Kind], ...] = (
    ("transform", "with_lock"),
    ("transform", "sleep"),
    ("collate", "without_lock"),
)


@dataclass(frozen=True)
class Part:
    """A class of stages.py and its arguments."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A job with at most one slow stage."""

    stage: Stage = "step"
    """The stage that may be slow."""
    kind: Kind = "sleep"
    ratio: float = 0.0
    """Time by which the stage is slower per batch, relative to the step's; 0: nothing is slow. For
    start-up: per epoch, relative to all steps of an epoch."""
    workers: int = 0
    step_kind: Kind = "sleep"
    step_s: float = STEP_S
    every: int = 1
    """If it is n > 1, only every n-th batch is slow, and n times as slow."""
    batch_bytes: int = 0
    """Bytes of a batch of which the hand-off takes the added time with one worker; 0: batches are
    small."""
    width: int = 0
    """Width of the network that is the step; 0: the step takes `step_s` by `step_kind`."""
    uneven: int = 1
    """Every eighth step of a wide network takes this many times as long."""
    threads: int = 1
    """Number of torch's threads."""
    load: int = 0
    """Number of other programs that compute at the same time."""

    @property
    def name(self) -> str:
        """A unique name for the tables."""
        slow = f"{self.stage} {self.kind} x{self.ratio:g}" if self.ratio else "nothing slow"
        slow += f" every {self.every}th" if self.every > 1 else ""
        length = "long " if self.step_s > STEP_S else ""
        step = f"{length}{self.step_kind}"
        if self.width:
            evenness = "uneven " if self.uneven > 1 else ""
            step = f"{evenness}{self.width} wide, {self.threads} threads, load {self.load},"
        return f"{slow}, {step} step, {self.workers} workers"

    @property
    def slow_s(self) -> float:
        """Seconds by which the stage is slower, on average over the batches."""
        return self.ratio * self.step_s

    @property
    def persistent(self) -> bool:
        """True if workers outlive an epoch, so that no epoch contains their start."""
        return self.workers > 0 and self.stage != "start-up"

    @property
    def is_contended(self) -> bool:
        """True if the pipeline needs more cores than the two that the machine has."""
        busy = self.workers * (self.kind != "sleep" and self.stage != "step")
        return busy + (self.step_kind != "sleep") * self.threads + self.load > 2

    @property
    def is_light(self) -> bool:
        """True if the pipeline only sleeps, so that two can be judged at the same time on two
        cores."""
        return {self.kind, self.step_kind} == {"sleep"} and not self.batch_bytes

    def without_injection(self) -> Pipeline:
        """The same pipeline without its delay."""
        features = {"batch_bytes": 0} if self.batch_bytes else {}
        return replace(self, ratio=0.0, **features)

    def expected_share(self) -> float:
        """Share of the epoch that the slow stage costs by construction, without contention."""
        return 1 - self._epoch_s(0.0) / self._epoch_s(self.slow_s)

    def _epoch_s(self, slow_s: float) -> float:
        loads, step_s, start_s = [0.0] * BATCHES, self.step_s, 0.0
        if self.stage == "step":
            step_s += slow_s
        elif self.stage == "start-up":
            start_s = BATCHES * slow_s
        elif not (self.stage == "hand-off" and not self.workers):
            slow = [(number + 1) % self.every == 0 for number in range(BATCHES)]
            loads = [self.every * slow_s * is_slow for is_slow in slow]
        return epoch_seconds(loads, step_s, self.workers, start_s=start_s)

    @property
    def word(self) -> Stage:
        """The verdict that is right by construction."""
        return self.stage if self.expected_share() >= WORTH else "step"

    def parts(self) -> dict[str, Part]:
        """Name of an option group -> the class of stages.py that the pipeline has for it."""
        step_s = self.step_s + self.slow_s * (self.stage == "step")
        parts = {"dataset": self._dataset()}
        parts["model"] = Part("Net", {"kind": self.step_kind, "seconds": step_s})
        if self.width:
            parts["model"] = Part("WideNet", {"width": self.width, "uneven": self.uneven})
        if self.stage == "start-up" and not self.workers:
            parts["order"] = Part("SlowOrder", {"seconds": self.slow_s * BATCHES})
        amount = {"kind": self.kind, "seconds": self.slow_s / BATCH_SIZE}
        if self.ratio and self.stage == "transform":
            parts["transform"] = Part("SlowTransform", amount)
        if self.ratio and self.stage == "collate":
            parts["collate"] = Part("SlowCollate", amount)
        return parts

    def overrides(self) -> tuple[str, ...]:
        """The overrides for `fastloop explain`."""
        parts = self.parts()
        targets = [(f"{group}._target_", f"{MODULE}.{part.name}") for group, part in parts.items()]
        values = [
            (f"+{group}.{name}", value)
            for group, part in parts.items()
            for name, value in part.settings.items()
        ]
        present = SETTINGS | {"torch_threads": self.threads, "num_workers": self.workers}
        settings = [*present.items(), *targets, *values]
        settings += [("order", "sequential")] if "order" not in parts else []
        settings += [("persistent_workers", "true")] if self.persistent else []
        return tuple(f"{name}={value}" for name, value in settings)

    def _dataset(self) -> Part:
        count = {"count": BATCHES * BATCH_SIZE}
        if self.batch_bytes:
            features = self.batch_bytes // BATCH_SIZE // FLOAT_BYTES
            return Part("LargeBatches", count | {"features": features})
        if self.stage == "start-up" and self.workers:
            return Part("Samples", count | {"start_s": self.slow_s * BATCHES})
        if self.stage != "decode":
            return Part("Samples", count)
        # If one of several batches is slow, its last sample takes the time of all of them.
        every = self.every * BATCH_SIZE if self.every > 1 else 1
        seconds = self.slow_s * every / BATCH_SIZE
        return Part("Samples", count | {"kind": self.kind, "seconds": seconds, "every": every})


def all_pipelines(bytes_per_s: float) -> list[Pipeline]:
    """All pipelines, in a fixed order. bytes_per_s: rate at which one worker hands over batches."""
    slow = [*_injected(), *_large_hand_offs(bytes_per_s), *_contended()]
    return [*slow, *_plain(), *_hidden(), *_heavy_steps()]


def _injected() -> Iterator[Pipeline]:
    for kind, ratio, workers in product(KINDS, RATIOS, WORKERS):
        yield Pipeline(stage="decode", kind=kind, ratio=ratio, workers=workers)
    for stage, kind in OTHERS:
        for ratio, workers in [*product(RATIOS, (0,)), (RATIOS[-1], 1), (RATIOS[-1], 2)]:
            yield Pipeline(stage=stage, kind=kind, ratio=ratio, workers=workers)
    for ratio, workers in product(RATIOS, WORKERS):
        yield Pipeline(stage="decode", ratio=ratio, workers=workers, every=EVERY)
        yield Pipeline(stage="start-up", ratio=ratio, workers=workers)
    for ratio, workers in product(RATIOS, (0, 2)):
        yield Pipeline(stage="step", ratio=ratio, workers=workers)


def _large_hand_offs(bytes_per_s: float) -> Iterator[Pipeline]:
    for ratio, workers in [*product(RATIOS, (1,)), (RATIOS[-1], 2)]:
        size = int(ratio * STEP_S * bytes_per_s)
        yield Pipeline(stage="hand-off", ratio=ratio, workers=workers, batch_bytes=size)


def _contended() -> Iterator[Pipeline]:
    """Pipelines with a step that computes on a core, too."""
    for kind in KINDS[1:]:
        for ratio, workers in ((1.0, 2), (3.0, 2), (3.0, 1)):
            yield Pipeline(
                stage="decode", kind=kind, ratio=ratio, workers=workers, step_kind="without_lock"
            )


def _plain() -> Iterator[Pipeline]:
    yield from (Pipeline(workers=workers) for workers in WORKERS)
    yield from (Pipeline(workers=workers, step_kind="without_lock") for workers in (0, 2))


def _hidden() -> Iterator[Pipeline]:
    """Healthy pipelines with workers: their slow stages run while the loop steps."""
    stages: list[tuple[Stage, Kind]] = [("decode", kind) for kind in KINDS]
    for (stage, kind), workers in product((*stages, *OTHERS), (1, 2)):
        yield Pipeline(stage=stage, kind=kind, ratio=0.3, workers=workers, step_s=LONG_STEP_S)
    yield from (Pipeline(workers=workers, step_s=LONG_STEP_S) for workers in WORKERS)
    for kind in KINDS[1:]:
        yield Pipeline(workers=1, step_kind=kind, step_s=LONG_STEP_S)
    yield Pipeline(stage="decode", ratio=0.3, workers=1, every=EVERY, step_s=LONG_STEP_S)


def _heavy_steps() -> Iterator[Pipeline]:
    """Healthy pipelines with steps that compute in several of torch's threads, also on a busy
    machine."""
    for (width, uneven, workers), threads, load in product(HEAVY_STEPS, THREADS, LOADS):
        yield Pipeline(
            step_kind="without_lock",
            width=width,
            uneven=uneven,
            workers=workers,
            threads=threads,
            load=load,
        )
