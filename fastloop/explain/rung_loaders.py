"""Open the loader of a rung of a job's ladder.

On each rung the job runs without the parts above the rung, see rungs.py. Ready batches, samples or
files, which are in memory before the epoch begins, take the place of the missing parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar

import torch
from torch.utils.data import default_collate, get_worker_info

from fastloop.core import stats
from fastloop.core.index_batches import epoch_indices, num_batches
from fastloop.core.move_tensors import map_tensors
from fastloop.core.parts import Part
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Epochs, Tree
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.dataset_samples import uint8_samples
from fastloop.data.image_files import LabelledImages
from fastloop.data.image_pixels import to_floats
from fastloop.data.rows import Rows
from fastloop.data.torch_epochs import identity_collate, torch_epochs
from fastloop.explain.image_decoding import reads_images
from fastloop.explain.rungs import rungs_of
from fastloop.trial.job_context import JobContext
from fastloop.trial.page_cache import ReopenableLoader, open_reopenable
from fastloop.trial.window import Consumer

MOST_READY = 8
"""Maximum number of ready batches. An epoch repeats the ready batches up to its own length."""
READY_S = 1.0
"""Seconds after which no further ready batch or sample is made, because making one may be slow."""
TIMED_SHARES = 3
"""Number of times that `share_seconds` copies a batch; the result is the median time."""


@dataclass(frozen=True, kw_only=True)
class SubstituteLoader:
    """A loader in place of the job's own; `open_epochs` opens its epochs."""

    open_epochs: Callable[[], AbstractContextManager[Epochs]]
    """Returns a context with the epochs."""
    store: ClassVar[None] = None
    """None: the loader reads no store."""

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:  # noqa: ARG002
        """Open the epochs by `open_epochs`; both arguments are ignored."""
        return self.open_epochs()


@dataclass(frozen=True)
class ReadySamples:
    """A dataset of samples in memory, which are repeated up to the length of the job's dataset."""

    samples: Sequence[Tree]
    num_samples: int
    """Length of the job's dataset."""

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tree:
        return self.samples[index % len(self.samples)]


@dataclass
class ReadyBatches:
    """A dataset that returns whole batches from memory, in turn, and so needs no collate."""

    batches: Sequence[Tree]
    num_samples: int
    """Length of the job's dataset."""
    turn: count = field(default_factory=count)
    """Counts the batches that were returned."""

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tree:
        raise TypeError(f"{index}: batches are read whole, by __getitems__")

    def __getitems__(self, indices: list[int]) -> Tree:
        batch = self.batches[next(self.turn) % len(self.batches)]
        return map_tensors(lambda leaf: _hand_over(leaf, len(indices)), batch)

    def __reduce__(self) -> tuple[Any, ...]:
        # `turn` is left out, because pickling an itertools.count is deprecated.
        return ReadyBatches, (self.batches, self.num_samples)


@dataclass(frozen=True)
class ReadyFiles:
    """A dataset of images that are decoded from file contents in memory.

    The images are repeated up to the length of the job's dataset.
    """

    images: LabelledImages
    """The job's dataset."""
    indices: Sequence[int]
    """The places in `images` of the files in memory."""
    data: Sequence[bytes]
    """The content of each of these files."""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tree:
        place = index % len(self.indices)
        pixels = self.images.decode_file(self.data[place])
        _, label = self.images.files[self.indices[place]]
        return (pixels if self.images.as_uint8 else to_floats(pixels)), label


def _hand_over(leaf: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first `rows` rows of a batch's tensor; in a worker, a copy in new shared memory.

    A tensor without dimensions has no rows, and is returned whole.
    """
    leaf = leaf[:rows] if leaf.ndim else leaf
    # In a worker, default_collate writes its batch to shared memory. A ready batch has to be
    # written, too: otherwise the hand-off would seem cheaper than it is.
    return leaf if get_worker_info() is None else default_collate([leaf])[0]


def share_seconds(batch: Tree) -> float:
    """Median seconds to write a batch to new shared memory, as a worker does to send it."""
    seconds = []
    for _ in range(TIMED_SHARES):
        # A new copy is made each time, because share_memory_ leaves shared tensors as they are.
        copy = map_tensors(lambda leaf: leaf.cpu().clone(), batch)
        start_ns = now_ns()
        map_tensors(torch.Tensor.share_memory_, copy)
        seconds.append(seconds_between(start_ns, now_ns()))
    return stats.median(seconds)


def take_batches(context: JobContext) -> list[Tree]:
    """The first batches of an epoch, as the job's loader delivers them to the loop.

    No further batch is taken once READY_S has passed. If there are several batches, the last one is
    left out, because it may be short.
    """
    with context.open_loader() as loader:
        start_ns = now_ns()
        batches = []
        for batch in islice(loader.epochs(context.job.epochs), MOST_READY):
            batches.append(batch)
            if seconds_between(start_ns, now_ns()) > READY_S:
                break
        # The last batch of an epoch may be short.
        return batches[: max(1, len(batches) - 1)]


@contextmanager
def open_rung(
    context: JobContext, rung: Part, host: list[Tree]
) -> Iterator[tuple[ReopenableLoader, Consumer]]:
    """Yield the loader of a rung, and the function that delivers its batches to the step.

    host: the batches of `take_batches`, which the rungs without a collate repeat.
    """
    job = context.job
    deliver = context.step_delivery()
    if rung is Part.STEP:
        resident = [deliver(batch) for batch in host]
        open_ = partial(_open_repeated, resident, context)
        with open_reopenable(open_) as loader:
            yield loader, lambda batch: batch
        return
    if rung is Part.COPY and job.transform.where == "device":
        deliver = _copy_only(context, deliver(host[0]))
    if open_epochs := _substitute(context, rung, host):
        loader = SubstituteLoader(open_epochs=open_epochs)
        context = replace(context, job=replace(job, loader=loader))
    with context.open_loader() as loader:
        yield loader, deliver


def _copy_only(context: JobContext, ready: Tree) -> Callable[[Tree], Tree]:
    """A function that copies a batch to the device, but returns `ready`, a transformed batch.

    The transform on the device is a rung of its own, above the copy.
    """
    place = context.loop_delivery()

    def deliver(batch: Tree) -> Tree:
        place(batch)
        return ready

    return deliver


def _substitute(
    context: JobContext, rung: Part, host: list[Tree]
) -> Callable[[], AbstractContextManager[Epochs]] | None:
    """A function that opens the epochs of the rung, or None if the job's own loader runs as it is.

    host: the batches of `take_batches`.
    """
    job = context.job
    plan = context.plan
    prepared = context.prepared
    rungs = rungs_of(job, prepared)
    # The last rung is the job itself.
    if rung is rungs[-1]:
        return None
    # In these rungs the loop copies batches to the device, or also transforms them there. So the
    # loader only has to repeat the batches of the host.
    if rung is Part.COPY or (rung is Part.TRANSFORM and job.transform.where == "device"):
        return partial(_open_repeated, host, context)
    # In the other rungs DataLoader runs with the job's settings: for HAND_OFF over ready batches,
    # for COLLATE and TRANSFORM over ready samples, for DECODE over files in memory.
    bare = replace(plan, transform=None)
    if rung is Part.HAND_OFF:
        ready = ReadyBatches(host, prepared.num_samples)
        return partial(torch_epochs, ready, replace(bare, collate=None), identity_collate)
    samples = _samples(context)
    if rung is Part.DECODE:
        return partial(torch_epochs, _files_in_memory(context, samples), plan)
    indices = _some_indices(context)
    made = _make_samples(samples, indices)
    # The COLLATE rung runs no transform, but has to collate samples of the transformed size. So the
    # ready samples are transformed before the epoch.
    if rung is Part.COLLATE and plan.transform is not None:
        made = [plan.transform.transform_sample(sample) for sample in made]
    ready = ReadySamples(made, prepared.num_samples)
    return partial(torch_epochs, ready, bare if rung is Part.COLLATE else plan)


def _samples(context: JobContext) -> Any:
    """The samples as the job's loader reads them: rows of its store, or samples of the dataset."""
    job = context.job
    prepared = context.prepared
    if job.loader.store is not None:
        return Rows(partial(job.loader.store.open, prepared.folder))
    if context.plan.collate is not None and context.plan.collate.takes == "uint8":
        return uint8_samples(prepared.dataset, context.plan.collate)
    return prepared.dataset.open()


def _some_indices(context: JobContext) -> list[int]:
    """The indices of the samples in the first MOST_READY batches of epoch 0, in their order."""
    plan = context.plan
    count = MOST_READY * context.plan.loading.batch_size
    indices = epoch_indices(plan.order, context.prepared.num_samples, plan.seed, 0)
    return indices[:count].tolist()


def _make_samples(samples: Any, indices: list[int]) -> list[Tree]:
    """Make the samples of these indices in order; the rest is left out once READY_S has passed."""
    start_ns = now_ns()
    made = []
    for index in indices:
        made += fetch_samples(samples, [index])
        if seconds_between(start_ns, now_ns()) > READY_S:
            break
    return made


def _files_in_memory(context: JobContext, samples: Any) -> Any:
    """ReadyFiles of the first samples if the job reads image files; else `samples` themselves."""
    if not (reads_images(context.job) and isinstance(samples, LabelledImages)):
        return samples
    indices = _some_indices(context)
    data = [samples.read_file(index) for index in indices]
    return ReadyFiles(samples, indices, data)


@contextmanager
def _open_repeated(batches: list[Tree], context: JobContext) -> Iterator[Epochs]:
    """Yield epochs that repeat these batches, up to the number of batches in the job's epochs."""
    count = num_batches(context.plan, context.prepared.num_samples)
    yield lambda _: (batches[place % len(batches)] for place in range(count))
