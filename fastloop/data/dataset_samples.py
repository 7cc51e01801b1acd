"""Samples that a loader reads from the dataset itself: fetched, transformed, or broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optree

from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Samples
from fastloop.core.traits import CollateTraits, traits_of
from fastloop.core.types import BadData, Tree, Unsupported, name_of
from fastloop.data.image_files import LabelledImages


def is_broken(sample: Tree | None) -> bool:
    """True for None and for a tuple, list or dict with a None in it.

    A Dataset returns such a sample if it could not read it. A collate returns such a batch if all
    of its samples are broken.
    """
    if sample is None:
        return True
    if isinstance(sample, dict):
        return any(map(is_broken, sample.values()))
    return isinstance(sample, tuple | list) and any(map(is_broken, sample))


def is_not_empty(batch: Tree | None) -> bool:
    """False for a batch without any sample that could be decoded."""
    return not is_broken(batch)


def fetch_samples(samples: Samples, indices: list[int]) -> Any:
    """The argument that torch's DataLoader passes to its collate_fn: the result of the Dataset's
    `__getitems__` if it has one, else a list of samples."""
    getitems = getattr(samples, "__getitems__", None)
    return getitems(indices) if getitems else [samples[index] for index in indices]


def returns_batches(samples: Samples) -> bool:
    """True if the Dataset's `__getitems__` returns a batch, such as `self.data[indices]`, instead
    of the list of samples that torch documents."""
    # Two samples are enough to tell. A batch of them is either not a sequence of two, or its two
    # items, such as (images, labels), differ from samples in their trees or dimensions.
    getitems = getattr(samples, "__getitems__", None)
    if not getitems:
        return False
    indices = [0, len(samples) - 1]
    fetched = getitems(indices)
    if not isinstance(fetched, Sequence) or len(fetched) != len(indices):
        return True
    single = [_form(samples[index]) for index in indices]
    return [_form(sample) for sample in fetched] != single


def check_batches(prepared: PreparedData, plan: Plan) -> bool:
    """True if the Dataset's `__getitems__` returns batches and no collate is set, so that nothing
    is left to collate; raises Unsupported for settings that need single samples."""
    if not prepared.returns_batches:
        return False
    reason = f"the __getitems__ of {prepared.label} returns a whole batch"
    if plan.transform is not None:
        hint = "transform.where=device transforms batches"
        raise Unsupported(f"transform with transform.where=worker: {reason}; {hint}")
    if plan.collate is not None and not traits_of(CollateTraits, plan.collate).defines_samples:
        hint = "a collate of your own can take it"
        raise Unsupported(f"collate={name_of(plan.collate)}: {reason}; {hint}")
    return plan.collate is None


@dataclass(frozen=True)
class TransformedSamples:
    """Samples with a transform applied to each, except to broken ones."""

    samples: Samples
    transform: Callable[[Tree], Tree]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree:
        return self._transform(self.samples[index])

    @property
    def __getitems__(self) -> Callable[[list[int]], list[Tree]] | None:
        """The samples of a batch; None if the Dataset reads them one by one."""
        getitems = getattr(self.samples, "__getitems__", None)
        if not getitems:
            return None
        return lambda indices: [self._transform(sample) for sample in getitems(indices)]

    def _transform(self, sample: Tree) -> Tree:
        return sample if is_broken(sample) else self.transform(sample)


@dataclass(frozen=True)
class TolerantSamples:
    """Samples with None in place of each that can't be decoded."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree | None:
        try:
            return self.samples[index]
        except BadData:
            return None

    @property
    def __getitems__(self) -> Callable[[list[int]], Any] | None:
        """The Dataset's own `__getitems__`; None if it reads samples one by one."""
        # The Dataset's own function decides about the samples that it can't read.
        return getattr(self.samples, "__getitems__", None)


def wrap_samples(samples: Samples, plan: Plan) -> Samples:
    """The samples as a loader reads them: transformed, None in place of a broken one if the
    collate skips those, and in an instrumented pass with each read and transform recorded."""
    transform = plan.transform.transform_sample if plan.transform else None
    if plan.probe and isinstance(samples, LabelledImages):
        samples = replace(samples, read=plan.probe.wrap_read(samples.read))
    if plan.probe and transform:
        transform = plan.probe.wrap_transform(transform)
    if plan.collate is not None and plan.collate.tolerant:
        samples = TolerantSamples(samples)
    return TransformedSamples(samples, transform) if transform else samples


def _form(sample: Tree) -> tuple[Any, list[int]]:
    """The tree and the number of dimensions of each leaf, which batching increases."""
    leaves, structure = optree.tree_flatten(sample)
    return structure, [getattr(leaf, "ndim", 0) for leaf in leaves]
