"""`loader=fastloop`: fastloop's own FastLoader, which can be used without the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse
from typing import Any, ClassVar

import numpy as np
from torch.utils import _pytree as pytree
from torch.utils.data import Subset

from fastloop.core.bounds import PositiveDepth, Threads
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import RandpermOrder, Store
from fastloop.core.types import Epochs, Tree, Unsupported, name_of, option
from fastloop.data.crop_columns import crop_columns
from fastloop.data.cropped_dataset import CroppedDataset, plan_of_indices
from fastloop.data.dataset_batches import needs_no_collate
from fastloop.data.dataset_samples import is_broken, uint8_samples, wrap_samples
from fastloop.data.image_file_column import ImageFileColumn
from fastloop.data.image_files import LabelledImages
from fastloop.data.random_samples import SeededDataset
from fastloop.data.rows import read_into_memory
from fastloop.data.torch_epochs import identity_collate
from fastloop.fastloader import FastLoader
from fastloop.fastloader.columns.column import ColumnList, mark_columns
from fastloop.fastloader.order import MAX_RANDPERM


@option
class FastloopLoader:
    """A loader that delivers batches by a FastLoader.

    With a store, the threads of FastLoader's native core gather rows ahead of the loop: no process
    is started, and no Python code runs per sample. Without the native core, rows are gathered in
    the loop. With store=null, Python threads read, decode, transform and collate the samples of the
    dataset. Images of one size are decoded straight into the batch. The native decoder crops
    images if it makes the same pixels as the job's decoder.
    """

    store: Store | None
    """The store to read; None: the samples of the dataset itself are read."""
    in_memory: bool
    """True: the whole store is read into memory before the first epoch."""
    num_threads: Threads | None
    """Number of threads besides the loop's thread; 0: the loop makes all batches; None: FastLoader
    chooses the number."""
    ahead: PositiveDepth | None
    """FastLoader's `prefetch_factor`: the number of blocks that each thread makes ahead of the
    loop. A block of the native core has batches of about 1 MiB together; any other block is one
    batch. None: FastLoader chooses the number."""
    has_even_shares: ClassVar[bool] = True
    """All ranks get the same number of batches, because the plan's order is followed."""
    reads_samples: ClassVar[bool] = True
    """With store=null, the samples of the dataset itself are read."""

    @property
    def honours(self) -> tuple[str, ...]:
        """Names of honoured settings: with store=null collate and transform, which need samples."""
        return () if self.store else ("collate", "transform")

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the memory of a batch is not reused while the batch is referenced."""
        plan = plan_of_indices(plan)
        source, collate_fn = self._source(prepared, plan)
        loader = FastLoader(
            source,
            plan.loading.batch_size,
            drop_last=plan.loading.drop_last,
            seed=plan.seed,
            rank=0,  # the plan's order is this rank's share
            world_size=1,
            collate_fn=collate_fn,
            thread_safe=self.store is not None or not _has_user_code(prepared, plan),
            num_threads=0 if _seeds_globally(prepared) else self.num_threads,
            prefetch_factor=self.ahead,
        )
        epochs = fastloader_epochs(loader, plan)
        pieces = loader.record_pieces() if plan.probe else None
        yield epochs
        if plan.probe and pieces:
            plan.probe.add_pieces(pieces.read())

    def _source(self, prepared: PreparedData, plan: Plan) -> tuple[Any, Callable | None]:
        """FastLoader's dataset and collate_fn."""
        if self.store is not None:
            rows = self.store.open(prepared.folder)
            if self.in_memory:
                return mark_columns(read_into_memory(rows)), None
            rows = pytree.tree_map_only(np.memmap, _mark_read_only, rows)
            return mark_columns(rows), None
        if self.in_memory:
            raise Unsupported("in_memory=true: without a store there are no rows to read into it")
        return _samples(prepared, plan)


def _seeds_globally(prepared: PreparedData) -> bool:
    """True if the dataset makes random samples comparable. Reading a sample then seeds the global
    generators with the sample's index, so only one thread may read."""
    return isinstance(prepared.dataset, SeededDataset)


def _has_user_code(prepared: PreparedData, plan: Plan) -> bool:
    """True if a sample is made by the user's code, which may not be thread-safe."""
    # The user's Dataset may be inside of a SeededDataset.
    dataset = getattr(prepared.dataset, "dataset", prepared.dataset)
    parts = dataset, plan.collate, plan.transform
    return any(getattr(part, "target", None) is not None for part in parts)


def _mark_read_only(array: np.memmap) -> np.memmap:
    """The array marked read-only, so that FastLoader may read its file instead of the mapping."""
    array.flags.writeable = False
    return array


def _samples(prepared: PreparedData, plan: Plan) -> tuple[Any, Callable | None]:
    """The source and the collate_fn of a FastLoader that reads the dataset itself."""
    dataset = prepared.dataset
    collate = plan.collate
    transform = plan.transform
    if isinstance(dataset, CroppedDataset):
        return ColumnList(_crops(dataset, plan)), None
    if needs_no_collate(prepared, plan):
        return _record_use(dataset.open(), identity_collate, plan)
    as_uint8 = collate is not None and collate.takes == "uint8"
    samples = uint8_samples(dataset, collate) if collate and as_uint8 else dataset.open()
    is_unchanged = not transform and (collate is None or as_uint8)
    if isinstance(samples, LabelledImages) and samples.size and is_unchanged:
        # A batch is a tuple for the collate of uint8 images, but a list with default_collate.
        pair = ImageFileColumn(samples), samples.labels
        return (pair if as_uint8 else ColumnList(pair)), None
    if isinstance(samples, list | tuple | dict):
        # FastLoader would take a tuple or a dict for a tree of columns.
        samples = Subset(samples, range(len(samples)))  # pyright: ignore[reportArgumentType]
    return _record_use(wrap_samples(samples, plan), collate.collate if collate else None, plan)


def _crops(dataset: CroppedDataset, plan: Plan) -> list[Any]:
    """The columns of the crops; raises Unsupported if the plan has a collate."""
    if plan.collate is not None:
        reason = "crops are made in the batch; loader=raw collates them"
        raise Unsupported(f"collate={name_of(plan.collate)} with loader=fastloop: {reason}")
    return crop_columns(dataset)


def _record_use(
    samples: Any, collate_fn: Callable | None, plan: Plan
) -> tuple[Any, Callable | None]:
    """The samples and the collate_fn; in a pass with a probe, wrapped to record their use."""
    if plan.probe is None:
        return samples, collate_fn
    return plan.probe.wrap_dataset(samples), plan.probe.wrap_collate(collate_fn)


@dataclass(frozen=True)
class PlanSampler:
    """The order of an epoch as a FastLoader sampler, evaluated while the epoch runs."""

    plan: Plan
    num_samples: int
    """Number of samples of the whole dataset."""
    epoch: int
    """Number of the epoch, from 0."""

    def __len__(self) -> int:
        return self.plan.order.length(self.num_samples)

    def pieces(self) -> Iterator[np.ndarray]:
        """The int64 indices of the order, piece by piece."""
        pieces = self.plan.order.pieces(self.num_samples, self.plan.seed, self.epoch)
        return (piece.numpy() for piece in pieces)


def fastloader_epochs(loader: FastLoader, plan: Plan) -> Epochs:
    """Change the loader's order to the plan's order, and return the loader's epochs.

    The loader keeps this order: `loader.shuffle` is set here, and `loader.sampler` at the start of
    each epoch. If the loader draws the plan's permutation from the same seed, shuffle is True and
    the sampler stays None, so that the loader runs as it does outside of the benchmark.
    """
    num_samples = loader.num_samples
    assert num_samples is not None  # a stream has no order
    loader.shuffle = isinstance(plan.order, RandpermOrder) and num_samples <= MAX_RANDPERM
    return partial(_epoch, loader, num_samples, plan)


def _epoch(loader: FastLoader, num_samples: int, plan: Plan, epoch: int) -> Iterator[Tree]:
    # The epoch's number also seeds the crops, whatever the order.
    loader.set_epoch(epoch)
    if not loader.shuffle:
        # FastLoader reads the plan's order as it reads a user's sampler.
        loader.sampler = PlanSampler(plan, num_samples, epoch)
    tolerant = plan.collate is not None and plan.collate.tolerant
    return filterfalse(is_broken, iter(loader)) if tolerant else iter(loader)
