"""`loader=fastloop`: our own FastLoader, which whoever finds it fastest takes home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveInt
from torch.utils import _pytree as pytree
from torch.utils.data import Subset

from fastloop.fastloader import FastLoader
from fastloop.fastloader.order import KEPT
from fastloop.image_files import Decoded, LabelledImages, uint8_samples
from fastloop.plans import Permuted, honours_only
from fastloop.protocols import Dataset, Store
from fastloop.rows import read_into_memory
from fastloop.torch_loader import Tolerant, Transformed, is_left
from fastloop.types import Epochs, Plan, Prepared, Tree, Unsupported, option


@option
class Fastloop:
    """Threads gather rows ahead, several batches at a time where they are small, into memory that
    is used again once nobody holds it: no processes, nothing done a sample.

    Without a store they read, decode, transform and collate the dataset's own samples; images that
    are all brought to one size are decoded into the batch.
    """

    store: Store | None
    in_memory: bool
    num_threads: NonNegativeInt | None
    ahead: PositiveInt | None

    @property
    def honours(self) -> tuple[str, ...]:
        """What is done with samples, where these are read."""
        return () if self.store else ("collate", "transform")

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches whose memory is theirs for as long as they are held."""
        honours_only("fastloop", plan, *self.honours)
        source, collate_fn = self._source(prepared, plan)
        loader = FastLoader(
            source,
            plan.batch_size,
            drop_last=plan.drop_last,
            seed=plan.seed,
            collate_fn=collate_fn,
            num_threads=self.num_threads,
            prefetch_factor=self.ahead,
        )
        yield epochs_of(loader, plan)

    def _source(self, prepared: Prepared, plan: Plan) -> tuple[Any, Callable | None]:
        """What FastLoader is given, and its collate_fn."""
        if self.store is not None:
            rows = self.store.open(prepared.folder)
            if self.in_memory:
                return read_into_memory(rows), None
            return pytree.tree_map_only(np.memmap, _unwritten, rows), None
        if self.in_memory:
            raise Unsupported("in_memory=true: without a store there are no rows to read into it")
        return _samples(prepared.dataset, plan)


def _unwritten(array: np.memmap) -> np.memmap:
    """It as FastLoader may read its file instead: nobody has written to a map of one's own."""
    array.flags.writeable = False
    return array


def _samples(dataset: Dataset, plan: Plan) -> tuple[Any, Callable | None]:
    collate, transform = plan.collate, plan.transform
    as_uint8 = collate is not None and collate.takes == "uint8"
    samples = uint8_samples(dataset) if as_uint8 else dataset.open()
    as_they_are = not transform and (collate is None or as_uint8)
    if isinstance(samples, LabelledImages) and samples.size and as_they_are:
        pair = Decoded(samples), samples.labels
        return (pair if as_uint8 else list(pair)), None
    if isinstance(samples, list | tuple | dict):  # a tree to FastLoader, samples here
        samples = Subset(samples, range(len(samples)))  # pyright: ignore[reportArgumentType]
    if collate is not None and collate.tolerant:
        samples = Tolerant(samples)
    if transform:
        samples = Transformed(samples, transform)
    return samples, collate.collate if collate else None


@dataclass(frozen=True)
class Drawn:
    """The order of an epoch, as a sampler that is asked on the way."""

    plan: Plan
    num_samples: int
    epoch: int

    def __len__(self) -> int:
        return self.plan.order.length(self.num_samples)

    def pieces(self) -> Iterator[np.ndarray]:
        """int64, the order's own."""
        made = self.plan.order.pieces(self.num_samples, self.plan.seed, self.epoch)
        return (piece.numpy() for piece in made)


def epochs_of(loader: FastLoader, plan: Plan) -> Epochs:
    """Its epochs in the plan's order, of which the loader, of that seed, draws itself what it can,
    as it does where it is taken home."""
    loader.shuffle = isinstance(plan.order, Permuted) and loader.num_samples <= KEPT
    return partial(_epoch, loader, plan)


def _epoch(loader: FastLoader, plan: Plan, epoch: int) -> Iterator[Tree]:
    if loader.shuffle:
        loader.set_epoch(epoch)
    else:
        loader.sampler = Drawn(plan, loader.num_samples, epoch)
    tolerant = plan.collate is not None and plan.collate.tolerant
    return filter(is_left, iter(loader)) if tolerant else iter(loader)
