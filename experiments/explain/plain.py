"""A pipeline as a bare loop over torch's DataLoader, without fastloop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from experiments.explain import stages
from experiments.explain.pipelines import BATCH_SIZE, BATCHES, Part, Pipeline

ROUNDS = 3
READY_BYTES = 1 << 23


@dataclass(frozen=True)
class Transformed(Dataset[Any]):
    """Samples with a transform applied to each."""

    samples: Dataset[Any]
    transform: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.samples)  # pyright: ignore[reportArgumentType]

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.samples[index])


@dataclass(frozen=True)
class Ordered:
    """A sampler of the indices of an order."""

    order: stages.SlowOrder
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for piece in self.order.pieces(self.count, 0, 0):
            yield from piece.tolist()


@dataclass
class PlainTimes:
    """Times of epochs of a loop that reads the clock twice a batch and has no other instruments."""

    seconds: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    """Seconds in next(), for each epoch."""
    start_up_s: list[float] = field(default_factory=list)
    """Wait for an epoch's first batch, minus that for any other batch, plus the wait for its
    end."""

    @property
    def share_in_next(self) -> float:
        """Share of the loop's time that is spent in next()."""
        return sum(self.wait_s) / sum(self.seconds)


def build_loader(pipeline: Pipeline) -> DataLoader[Any]:
    """The loader of the pipeline."""
    parts = pipeline.parts()
    dataset = _build(parts["dataset"])
    if "transform" in parts:
        dataset = Transformed(dataset, _build(parts["transform"]))
    sampler = Ordered(_build(parts["order"]), len(dataset)) if "order" in parts else None
    collate = _build(parts["collate"]) if "collate" in parts else default_collate
    return DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        sampler=sampler,
        num_workers=pipeline.workers,
        persistent_workers=pipeline.persistent,
        # A script has this default on Linux; a trial's process has another one.
        multiprocessing_context="fork" if pipeline.workers else None,
        collate_fn=_same if pipeline.batch_bytes else collate,
    )


def build_step(pipeline: Pipeline) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model of the pipeline, and its optimizer."""
    part = pipeline.parts()["model"]
    kind = getattr(stages, part.name)
    model = kind((stages.FEATURES,), stages.CLASSES, **part.settings)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def train_batch(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]
) -> None:
    """Train on one batch."""
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def time_plain(pipeline: Pipeline) -> tuple[PlainTimes, PlainTimes]:
    """Epochs of the pipeline, and of the same pipeline without its delay, in turn."""
    torch.set_num_threads(pipeline.threads)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    times = []
    for each in (pipeline, pipeline.without_injection()):
        step = partial(train_batch, *build_step(each))
        times.append((build_loader(each), step, PlainTimes()))
    for number in range(ROUNDS + 1):
        for loader, step, epochs in times:
            # The first epoch of each is a warm-up.
            _time_epoch(loader, step, epochs if number else PlainTimes())
    (_, _, slow), (_, _, fast) = times
    return slow, fast


def measure_bytes_per_s() -> float:
    """Bytes per second at which one worker hands over large batches while the loop does nothing."""
    pipeline = Pipeline(stage="hand-off", ratio=1.0, workers=1, batch_bytes=READY_BYTES)
    loader, epochs = build_loader(pipeline), PlainTimes()
    for number in range(ROUNDS + 1):
        _time_epoch(loader, lambda _: None, epochs if number else PlainTimes())
    paces = [
        (seconds - start_s) / BATCHES
        for seconds, start_s in zip(epochs.seconds, epochs.start_up_s, strict=True)
    ]
    return READY_BYTES / median(paces)


def _time_epoch(loader: DataLoader[Any], step: Callable[[Any], None], epochs: PlainTimes) -> None:
    waits, begun_s = [], time.perf_counter()
    asked_s, iterator = begun_s, iter(loader)
    while True:
        batch = next(iterator, None)
        waits.append(time.perf_counter() - asked_s)
        if batch is None:
            break
        step(batch)
        asked_s = time.perf_counter()
    epochs.seconds.append(time.perf_counter() - begun_s)
    epochs.wait_s.append(sum(waits))
    epochs.start_up_s.append(max(0.0, waits[0] - fmean(waits[1:-1])) + waits[-1])


def _build(part: Part) -> Any:
    return getattr(stages, part.name)(**part.settings)


def _same(batch: Any) -> Any:
    return batch
