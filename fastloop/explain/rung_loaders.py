"""Open the loader of a rung of a job's ladder.

On each rung the job runs without the parts above the rung, see rungs.py. Data that is in memory
before the epoch begins takes the place of the missing parts, see ready_data.py:

| rung | loader |
|---|---|
| STEP | batches that are on the device already |
| COPY, TRANSFORM on the device | batches in the host's memory |
| HAND_OFF | the job's DataLoader over ready batches |
| COLLATE, TRANSFORM in workers | the job's DataLoader over ready samples |
| DECODE below READ | the job's DataLoader over files in memory |
| the last rung | the job's own loader |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from fastloop.core.index_batches import epoch_indices, num_batches
from fastloop.core.parts import Part
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Epochs, Tree
from fastloop.data.dataset_samples import uint8_samples
from fastloop.data.image_files import LabelledImages
from fastloop.data.rows import Rows
from fastloop.data.torch_epochs import identity_collate, torch_epochs
from fastloop.explain.image_decoding import reads_images
from fastloop.explain.ready_data import (
    MOST_READY,
    READY_S,
    ReadyBatches,
    ReadyFiles,
    ReadySamples,
    make_samples,
)
from fastloop.explain.rungs import rungs_of
from fastloop.trial.job_context import JobContext
from fastloop.trial.reopenable_loader import ReopenableLoader, open_reopenable
from fastloop.trial.window import Consumer


def take_batches(context: JobContext) -> list[Tree]:
    """The first batches of an epoch, as the job's loader delivers them to the loop.

    At most MOST_READY batches are taken, and none once READY_S has passed. If there are several
    batches, the last one is left out, because it may be short.
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

    host: the batches of `take_batches`, which the rungs up to HAND_OFF repeat.
    """
    job = context.job
    deliver = context.step_delivery()
    if rung is Part.STEP:
        resident = [deliver(batch) for batch in host]
        with open_reopenable(partial(_open_repeated, resident, context)) as loader:
            yield loader, lambda batch: batch
        return
    if rung is Part.COPY and job.transform.where == "device":
        deliver = _copy_only(context, deliver(host[0]))
    if open_epochs := _find_substitute(context, rung, host):
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


def _find_substitute(
    context: JobContext, rung: Part, host: list[Tree]
) -> Callable[[], AbstractContextManager[Epochs]] | None:
    """A function that opens the epochs of the rung; None: the job's own loader runs as it is.

    rung: any rung except STEP. host: the batches of `take_batches`.
    """
    job, plan = context.job, context.plan
    if rung is rungs_of(job, context.prepared)[-1]:
        return None
    # In these rungs the loop copies batches to the device, or also transforms them there.
    if rung is Part.COPY or (rung is Part.TRANSFORM and job.transform.where == "device"):
        return partial(_open_repeated, host, context)
    bare = replace(plan, transform=None)
    if rung is Part.HAND_OFF:
        batches = ReadyBatches(host, context.prepared.num_samples)
        return partial(torch_epochs, batches, replace(bare, collate=None), identity_collate)
    if rung is Part.DECODE:
        return partial(torch_epochs, _files_in_memory(context), plan)
    samples = make_samples(_open_samples(context), _first_indices(context))
    # The COLLATE rung runs no transform, but has to collate samples of the transformed size. So the
    # ready samples are transformed before the epoch.
    if rung is Part.COLLATE and plan.transform is not None:
        samples = [plan.transform.transform_sample(sample) for sample in samples]
    ready = ReadySamples(samples, context.prepared.num_samples)
    return partial(torch_epochs, ready, bare if rung is Part.COLLATE else plan)


def _files_in_memory(context: JobContext) -> Any:
    """ReadyFiles of the first samples if the job reads image files; else the samples themselves."""
    samples = _open_samples(context)
    if not (reads_images(context.job) and isinstance(samples, LabelledImages)):
        return samples
    indices = _first_indices(context)
    return ReadyFiles(samples, indices, [samples.read_file(index) for index in indices])


def _open_samples(context: JobContext) -> Any:
    """The samples as the job's loader reads them: rows of its store, or samples of the dataset."""
    job, prepared, collate = context.job, context.prepared, context.plan.collate
    if job.loader.store is not None:
        return Rows(partial(job.loader.store.open, prepared.folder))
    if collate is not None and collate.takes == "uint8":
        return uint8_samples(prepared.dataset, collate)
    return prepared.dataset.open()


def _first_indices(context: JobContext) -> list[int]:
    """The indices of the samples in the first MOST_READY batches of epoch 0, in their order."""
    plan = context.plan
    indices = epoch_indices(plan.order, context.prepared.num_samples, plan.seed, 0)
    return indices[: MOST_READY * plan.loading.batch_size].tolist()


@contextmanager
def _open_repeated(batches: list[Tree], context: JobContext) -> Iterator[Epochs]:
    """Yield epochs that repeat these batches, up to the number of batches in the job's epochs."""
    count = num_batches(context.plan, context.prepared.num_samples)
    yield lambda _: (batches[place % len(batches)] for place in range(count))
