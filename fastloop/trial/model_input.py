"""Find the input and the target of the model in a job's batches: `find_model_input`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter

import torch

from fastloop.core.benchmark import runs_model
from fastloop.core.trees import tree_leaves
from fastloop.core.types import ExtractPair, Leaves, Tree, Unsupported
from fastloop.data.digest import leaves_of
from fastloop.options.model._inputs import describe_sample
from fastloop.trial.job import Job


def find_model_input(job: Job, num_classes: int | None, batch: Tree) -> tuple[Leaves, ExtractPair]:
    """dtype and shape of each leaf of a sample, and a function that selects (input, target).

    If a benchmark runs a model, the leaves are only the model's input and target. Raises
    Unsupported if a benchmark of the job can't use the sample.
    """
    benchmarks = job.benchmark

    def check(sample: Leaves) -> None:
        for benchmark in benchmarks.values():
            benchmark.check(job.model, num_classes, sample)

    with_model = [name for name, benchmark in benchmarks.items() if runs_model(benchmark)]
    if with_model:
        return find_pair(with_model[0], batch, check)
    sample = leaves_of(batch)
    check(sample)
    return sample, tuple


def find_pair(
    benchmark: str, batch: Tree, check: Callable[[Leaves], None]
) -> tuple[Leaves, ExtractPair]:
    """dtype and shape of a sample's (input, target), and a function that selects both from a batch.

    benchmark: its name, for error messages. check: raises Unsupported for samples that the model
    can't take. find_pair raises this error if no field fits as the input, and Unsupported if both
    fields do.
    """
    # The first element of a tuple or list of two is the input. In a mapping or a dataclass a name
    # may mean anything, so the input is the field that the model accepts.
    errors = []
    pairs = []
    for select in _candidate_pairs(batch):
        leaves = leaves_of(select(batch))
        try:
            check(leaves)
        except Unsupported as error:
            errors.append(error)
        else:
            pairs.append((leaves, select))
    if not pairs:
        raise errors[0]
    leaves, select = pairs[0]
    if len(pairs) == 1 and len(leaves) == 2:
        return leaves, select
    got = describe_sample(leaves)
    if len(pairs) > 1:
        names = _describe_fields(batch)
        got = f"{names} of {got}, either of which may be the input; in a tuple it is the first"
    needs = f"benchmark={benchmark} needs (input, target), got {got}"
    raise Unsupported(f"{needs}; benchmark=traversal takes any")


def _candidate_pairs(batch: Tree) -> list[ExtractPair]:
    """Functions that select (input, target): one per possible order, or a single one if the order
    is known or the batch is not a pair."""
    count = len(tree_leaves(batch))
    if isinstance(batch, tuple | list) and len(batch) == count == 2:
        return [tuple if all(isinstance(leaf, torch.Tensor) for leaf in batch) else tree_leaves]
    if count != 2:
        return [tree_leaves]
    names = [name for name, value in _fields(batch).items() if isinstance(value, torch.Tensor)]
    if len(names) != 2:
        return [tree_leaves, lambda batch: tree_leaves(batch)[::-1]]
    take = itemgetter if isinstance(batch, Mapping) else attrgetter
    return [take(*names), take(*reversed(names))]


def _fields(batch: Tree) -> dict[str, object]:
    """Top-level values of a mapping or a dataclass by name; empty for other batches."""
    if isinstance(batch, Mapping):
        return {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - a TensorDict iterates over its rows
    if not dataclasses.is_dataclass(batch):
        return {}
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def _describe_fields(batch: Tree) -> str:
    """Type and field names of a batch, for an error message."""
    return f"{type(batch).__name__}({', '.join(map(str, _fields(batch)))})"
