"""write_store and open_store: a dataset of one's own as a store, from Python."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset, TensorDataset

from fastloop.chunks import collated, collated_chunks
from fastloop.files import flushed, locked, written_beside
from fastloop.rows import bytes_of
from fastloop.stores.npy import STRUCTURE, Npy
from fastloop.types import SamplesDiffer, Tree

CHUNK_BYTES = 2 << 20
MOST_SAMPLES = 1024
COMPARED = 16
"""Samples, spread evenly, by which a store is taken for the same data."""


def write_store(
    dataset: Any, root: str | Path, *, overwrite: bool = False, num_workers: int = 0
) -> Path:
    """The folder `root` with one .npy file a leaf, whole or not there at all; open_store opens it.

    dataset: a map-style Dataset, or anything to iterate over, of samples of one shape, which
    torch's default_collate puts together, in `num_workers` processes for a Dataset; or a tree of
    tensors or arrays of one length. Memory is bounded by about 2 MiB of samples, or by one.

    A store that is there already is left as it is where it is of the same data: of as many samples,
    of which 16, spread evenly, are the same bit for bit. Where it is not, or the dataset can only
    be iterated over, that is an error unless overwrite=True; a folder that is no store is never
    replaced.

    Raises FileExistsError, OSError, BadData for samples that differ or can't be read, and
    Unsupported for trees and dtypes that numpy's files do not hold.
    """
    folder = Path(root).absolute()
    source = list(dataset.tensors) if type(dataset) is TensorDataset else dataset
    with locked(folder):
        if folder.exists() and not _to_be_written(folder, source, overwrite):
            return folder
        with written_beside(folder) as beside:
            beside.mkdir()
            Npy(root=str(folder.parent)).write(beside, _alike(_chunks(source, num_workers)), None)
            if not (beside / STRUCTURE).exists():
                raise ValueError(f"{folder}: there are no samples to write")
            for path in beside.iterdir():
                flushed(path)
    return folder


def open_store(root: str | Path) -> Tree:
    """The tree of memory-mapped arrays of a store, not yet read, as FastLoader takes it.

    Raises FileNotFoundError where there is none. The arrays can't be written to.
    """
    folder = Path(root).absolute()
    if not (folder / STRUCTURE).is_file():
        raise FileNotFoundError(errno.ENOENT, "no store is here, see write_store", str(folder))
    return Npy(root=str(folder.parent)).open(folder, "r")


def _to_be_written(folder: Path, source: Any, overwrite: bool) -> bool:
    """False where the data is there already; raises FileExistsError where it must not be."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    is_store = STRUCTURE in names and all(n == STRUCTURE or n.endswith(".npy") for n in names)
    if not is_store:
        raise FileExistsError(errno.EEXIST, "this is no store, and is left alone", str(folder))
    if overwrite or (_has_indices(source) and _is_of(folder, source)):
        return overwrite
    said = "a store of other data is here; overwrite=True replaces it"
    raise FileExistsError(errno.EEXIST, said, str(folder))


def _is_of(folder: Path, source: Any) -> bool:
    leaves, structure = pytree.tree_flatten(open_store(folder))
    count = _count(source)
    if {len(leaf) for leaf in leaves} != {count}:
        return False
    places = np.linspace(0, count - 1, COMPARED).round().astype(int).tolist()
    found, same = pytree.tree_flatten(_read(source, sorted(set(places))))
    stored = [torch.from_numpy(leaf[sorted(set(places))]) for leaf in leaves]
    return same == structure and [*map(_bits, found)] == [*map(_bits, stored)]


def _bits(leaf: torch.Tensor) -> tuple[object, ...]:
    return leaf.dtype, leaf.shape, bytes(bytes_of(leaf))


def _chunks(source: Any, num_workers: int) -> Iterator[Tree]:
    """Batches of about CHUNK_BYTES."""
    if not _has_indices(source):
        yield from _chunks_of(iter(source))
        return
    count = _count(source)
    if not count:
        return
    size = _fitting(_read(source, [0]))
    if _is_tree(source):
        for start in range(0, count, size):
            yield _read(source, slice(start, start + size))
        return
    yield from (one.batch for one in collated_chunks(source, size, num_workers))


def _alike(chunks: Iterator[Tree]) -> Iterator[Tree]:
    """The same; raises SamplesDiffer where a chunk has other leaves than those before it."""
    first, done = None, 0
    for chunk in chunks:
        leaves, structure = pytree.tree_flatten(chunk)
        found = structure, [(str(leaf.dtype), tuple(leaf.shape[1:])) for leaf in leaves]
        first = first or found
        if found != first:
            told = f"up to {done} they are {first[1]}, from it on {found[1]}"
            raise SamplesDiffer(f"samples differ: {told}")
        yield chunk
        done += len(leaves[0])


def _chunks_of(samples: Iterator[Any]) -> Iterator[Tree]:
    numbered = ((index, sample, "") for index, sample in enumerate(samples))
    size = MOST_SAMPLES
    for first in numbered:
        size = min(size, _fitting(collated([first], ragged=False).batch))
        yield collated([first, *islice(numbered, size - 1)], ragged=False).batch


def _fitting(batch_of_one: Tree) -> int:
    nbytes = sum(leaf.nbytes for leaf in pytree.tree_leaves(batch_of_one))
    return max(1, min(MOST_SAMPLES, CHUNK_BYTES // max(1, nbytes)))


def _read(source: Any, at: Any) -> Tree:
    """Those samples as a batch."""
    if _is_tree(source):
        return pytree.tree_map(lambda leaf: torch.as_tensor(leaf[at]), source)
    return collated([(index, source[index], "") for index in at], ragged=False).batch


def _count(source: Any) -> int:
    if not _is_tree(source):
        return len(source)
    counts = {len(leaf) for leaf in pytree.tree_leaves(source)}
    if len(counts) != 1:
        raise ValueError(f"a tree of tensors or arrays of one length, got {sorted(counts)}")
    return counts.pop()


def _is_tree(source: Any) -> bool:
    leaves = pytree.tree_leaves(source)
    return bool(leaves) and all(isinstance(leaf, torch.Tensor | np.ndarray) for leaf in leaves)


def _has_indices(source: Any) -> bool:
    if isinstance(source, IterableDataset):
        return False
    return _is_tree(source) or (hasattr(source, "__getitem__") and hasattr(source, "__len__"))
