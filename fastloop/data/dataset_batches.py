"""Fetch the samples of a batch from a Dataset, with its `__getitems__` if it has this method.

torch documents that `__getitems__` returns a list of samples, but it may return a whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optree

from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Samples
from fastloop.core.traits import CollateTraits, traits_of
from fastloop.core.types import Tree, Unsupported, name_of


def fetch_samples(samples: Samples, indices: list[int]) -> Any:
    """The samples of a batch, in the form in which torch's DataLoader passes them to collate_fn.

    The form is the result of the Dataset's `__getitems__`, or a list of samples if the Dataset has
    no such method.
    """
    getitems = getattr(samples, "__getitems__", None)
    return getitems(indices) if getitems else [samples[index] for index in indices]


def returns_batches(samples: Samples) -> bool:
    """True if the Dataset's `__getitems__` returns a batch instead of a list of samples.

    Such a batch is, for example, `self.data[indices]`.
    """
    # Two samples are enough to tell. A batch of two samples may be no sequence of two items. If it
    # is one, such as (images, labels), its items differ from samples in their trees or dimensions.
    getitems = getattr(samples, "__getitems__", None)
    if not getitems:
        return False
    indices = [0, len(samples) - 1]
    fetched = getitems(indices)
    if not isinstance(fetched, Sequence) or len(fetched) != len(indices):
        return True
    single = [_form(samples[index]) for index in indices]
    return [_form(sample) for sample in fetched] != single


def needs_no_collate(prepared: PreparedData, plan: Plan) -> bool:
    """True if the Dataset's `__getitems__` returns batches, and the plan has no collate.

    Raises Unsupported if `__getitems__` returns batches, but the plan needs single samples.
    """
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


def _form(sample: Tree) -> tuple[Any, list[int]]:
    """The tree of a sample, and the number of dimensions of each leaf.

    A leaf of a batch has one dimension more.
    """
    leaves, structure = optree.tree_flatten(sample)
    return structure, [getattr(leaf, "ndim", 0) for leaf in leaves]
