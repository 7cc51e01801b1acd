"""Reading all samples of a dataset, chunk by chunk, to write a reference or a store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import optree
import torch
from torch.utils.data import default_collate
from tqdm import tqdm

from fastloop.core.cgroup import usable_cores
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import BadData, SamplesDiffer, Tree
from fastloop.core.user_code import error_line
from fastloop.data.dataloader import decode_in_order
from fastloop.data.digest import nbytes_of
from fastloop.data.ragged import JaggedTensor, collate_jagged, is_ragged

CHUNK_BYTES = 2 << 20
PROBED_SAMPLES = 64
SLOW_SAMPLE_S = 20e-6
"""Slower decoding is spread over several processes. Measured: 3 us per sample is slower with them,
49 us faster."""
SLOW_TOTAL_S = 2.0
"""Processes are not started for less decoding than this in total."""


@dataclass(frozen=True)
class ChunkedReader:
    """Reads a dataset in chunks; the dataset is opened on the first access only."""

    dataset: Dataset
    tolerant: bool = False

    @cached_property
    def samples(self) -> Samples:
        """The opened dataset."""
        return self.dataset.open()

    def chunks(self, purpose: str) -> Iterator[Chunk]:
        """Yield all samples in order, collated, in chunks of about 2 MiB, with a progress bar on a
        terminal."""
        ragged = is_ragged(self.dataset)
        single = collate_chunks(self.samples, 1, 0, self.tolerant, ragged)
        first = next((chunk.batch for chunk in single if chunk.batch is not None), None)
        if first is None:
            raise BadData(f"{self.dataset.label}: no readable sample")
        size = max(1, min(1024, CHUNK_BYTES // max(1, nbytes_of(first))))
        processes = _decoding_processes(self.samples)
        with tqdm(
            total=len(self.samples),
            desc=f"{self.dataset.label}: {purpose}",
            unit=" samples",
            leave=False,
            disable=None,
        ) as bar:
            for chunk in collate_chunks(self.samples, size, processes, self.tolerant, ragged):
                yield chunk
                bar.update(chunk.size)


def _decoding_processes(samples: Samples) -> int:
    """0 where decoding in this process is fast enough, else the number of usable cores."""
    probe = IndexedSamples(samples, tolerant=True)
    start_ns = now_ns()
    count = sum(1 for _ in islice(map(probe.__getitem__, range(len(samples))), PROBED_SAMPLES))
    sample_s = seconds_between(start_ns, now_ns()) / count
    slow = sample_s > SLOW_SAMPLE_S and sample_s * len(samples) > SLOW_TOTAL_S
    return usable_cores() if slow and _is_picklable(samples) else 0


def _is_picklable(samples: Samples) -> bool:
    """False where samples can't be sent to another process, because of a lambda or an open file."""
    try:
        pickle.dumps(samples)
    except Exception:  # a user's class may raise anything
        return False
    return True


PYTHON_DTYPES = {bool: "bool", int: "int64", float: "float64"}
"""dtypes to which default_collate converts Python's numbers."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples."""

    batch: Tree
    """The decoded samples, collated by torch's default_collate, or with JaggedTensor leaves where
    samples differ in length; None where no sample could be decoded."""
    broken: list[tuple[int, str]]
    """Index and reason of each sample that could not be decoded."""
    size: int


@dataclass(frozen=True)
class IndexedSamples:
    """Items (index, sample, error): BadData is returned as the error if `tolerant`, any other error
    is raised as BadData with the index."""

    samples: Samples
    tolerant: bool

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, Tree, str]:
        try:
            return index, self.samples[index], ""
        except BadData as error:
            if not self.tolerant:
                raise
            return index, None, str(error)
        except Exception as error:
            raise BadData(f"sample {index}: {error_line(error)}") from error


def collate_chunks(
    samples: Samples, chunk: int, num_workers: int, tolerant: bool = False, ragged: bool = False
) -> Iterator[Chunk]:
    """Yield all samples in order, in batches of `chunk`; raises SamplesDiffer where they differ.

    num_workers: processes that decode, with a bounded number of batches in flight; 0: this one.
    ragged: the first dimension of a leaf may differ between samples.
    """
    collate = partial(collate_chunk, ragged=ragged)
    yield from decode_in_order(IndexedSamples(samples, tolerant), chunk, collate, num_workers)


def collate_chunk(items: list[tuple[int, Tree, str]], ragged: bool) -> Chunk:
    """Collate (index, sample, error) items into a chunk.

    Raises SamplesDiffer where samples differ, BadData where they can't be collated.
    """
    decoded = [(index, sample) for index, sample, error in items if not error]
    broken = [(index, error) for index, _, error in items if error]
    collate = collate_jagged if ragged else default_collate
    try:
        batch = collate([sample for _, sample in decoded]) if decoded else None
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        if difference := _describe_difference(decoded, _describe, ragged):
            raise SamplesDiffer(difference) from error
        raise BadData(f"samples can't be collated: {error}") from error
    # default_collate drops keys that the first sample lacks, and converts dtypes
    if difference := _describe_difference(decoded, _signature, ragged):
        raise SamplesDiffer(difference)
    _check_leaves(batch)
    return Chunk(batch, broken, len(items))


def _check_leaves(batch: Tree) -> None:
    leaves = [] if batch is None else optree.tree_leaves(batch)
    others = {
        type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor | JaggedTensor)
    }
    if others:
        names = ", ".join(sorted(others))
        raise BadData(f"samples hold {names}; only tensors, arrays and numbers are supported")


def _describe_difference(
    samples: list[tuple[int, Tree]], key: Callable[[Tree, bool], Any], ragged: bool
) -> str:
    """The first two samples whose keys differ; empty where all keys are equal."""
    if not samples:
        return ""
    (first, sample), *others = samples
    expected = key(sample, ragged)
    for index, other in others:
        if key(other, ragged) != expected:
            pair = f"{first} is {_describe(sample, ragged)}, {index} is {_describe(other, ragged)}"
            return f"samples differ: {pair}"
    return ""


def _signature(sample: Tree, ragged: bool) -> tuple[Any, list[Any]]:
    """The tree, and dtype and shape of each leaf as in a batch: int and int64 are equal."""
    leaves, structure = optree.tree_flatten(sample)
    return structure, [(_dtype(leaf), _sizes(leaf, ragged)) for leaf in leaves]


def _describe(sample: Tree, ragged: bool) -> str:
    return str(optree.tree_map(partial(_describe_leaf, ragged=ragged), sample)).replace("'", "")


def _describe_leaf(leaf: Any, ragged: bool) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{_dtype(leaf)}[{', '.join(map(str, _sizes(leaf, ragged)))}]"


def _dtype(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return str(leaf.dtype).removeprefix("torch.")
    return PYTHON_DTYPES.get(type(leaf), type(leaf).__name__)


def _sizes(leaf: Any, ragged: bool) -> tuple[Any, ...]:
    shape: Any = getattr(leaf, "shape", ())
    sizes: tuple[Any, ...] = tuple(shape)
    return ("*", *sizes[1:]) if ragged and sizes else sizes
