"""write_store and open_store: the user's datasets as stores, from Python.

Texts in samples are stored as bytes, or left out."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset, TensorDataset

from fastloop.core.atomic_files import flush_to_disk, hold_lock, write_beside
from fastloop.core.bars import sample_bar
from fastloop.core.types import BadData, SamplesDiffer, Tree
from fastloop.core.user_code import is_iterable
from fastloop.data.chunked_reader import collate_chunk, collate_chunks
from fastloop.data.image_encodings import ImageEncoding
from fastloop.data.image_store import StoredImages, write_image_store
from fastloop.data.npy_store import (
    STRUCTURE,
    check_is_store,
    check_lengths,
    open_npy,
    other_data_error,
    spread_indices,
    store_folder,
    write_npy,
)
from fastloop.data.ragged import JaggedTensor, open_ragged, select_rows, write_ragged
from fastloop.data.random_samples import refuse_random
from fastloop.data.rows import bytes_of
from fastloop.fastloader.columns.column import ColumnList, mark_columns

CHUNK_BYTES = 2 << 20
"""Approximate size of a chunk of samples, which bounds the memory of writing."""
MOST_SAMPLES = 1024
"""Most samples of a chunk, however small they are."""
TEXTS_ALLOWED = 'strings="keep" stores texts, strings="leave_out" drops them'


@overload
def write_store(
    dataset: Any,
    root: str | Path,
    *,
    overwrite: bool = ...,
    num_workers: int = ...,
    ragged: bool = ...,
    strings: Literal["keep", "leave_out"] | None = ...,
    allow_random: bool = ...,
) -> Path: ...
@overload
def write_store(
    dataset: Any,
    root: str | Path,
    *,
    overwrite: bool = ...,
    num_workers: int = ...,
    images: ImageEncoding,
) -> StoredImages: ...
def write_store(  # noqa: PLR0913 - settings of samples and of encoded images
    dataset: Any,
    root: str | Path,
    *,
    overwrite: bool = False,
    num_workers: int = 0,
    ragged: bool = False,
    strings: Literal["keep", "leave_out"] | None = None,
    images: ImageEncoding | None = None,
    allow_random: bool = False,
) -> Path | StoredImages:
    """Write a dataset to the folder `root`, with a .npy file for each leaf, for `open_store`.

    The folder is written atomically. Memory is bounded by about 2 MiB of samples, or by one sample.

    Returns the absolute path of the folder or, with `images`, `StoredImages`, which has the path,
    the cost of writing and the savings of reading.

    An existing store is kept if it holds the same data: the same number of samples, of which 16,
    spread evenly, are equal bit by bit. If it holds other data, or the dataset can only be iterated
    over, FileExistsError is raised unless overwrite=True. A folder that is not a store is never
    replaced.

    Args:
        dataset: a map-style Dataset or an iterable of samples of one shape, which torch's
            default_collate collates; or a tree of tensors or arrays of one length; or, with
            `images`, image files.
        root: path of the folder.
        overwrite: replace a store of other data.
        num_workers: number of processes that read a Dataset, 0: this one; with `images`, number of
            threads, 0: one for each core.
        ragged: samples may differ in the first dimension of their leaves. These are stored with
            offsets, and batches have (padded, lengths) in their place; FastLoader hands a
            collate_fn the samples instead.
        strings: "keep": store the texts of samples; batches have lists of them. "leave_out": drop
            them. None: raise BadData for a text.
        images: store image files undecoded, for `Images`. The dataset is then a list of paths or of
            the files' bytes, a tree of such lists and of labels, or torchvision's ImageFolder.
            "as_is" stores each file as it is. "jpeg" stores JPEGs with restart markers: the pixels
            are the same, and a crop is decoded faster. `LongestSide(pixels, quality)` also makes
            large JPEGs smaller. Other files are stored as they are.
        allow_random: store one draw of random samples, such as augmented ones. A Dataset of random
            samples is refused otherwise, as a store repeats that draw in every epoch; up to 16
            samples are read twice to find out.

    Raises FileExistsError, OSError, ValueError for a dataset without samples or of random ones,
    BadData for samples that differ or can't be read, and Unsupported for trees and dtypes that .npy
    files can't hold.

    >>> root = write_store({"x": torch.zeros(1000, 8), "y": torch.arange(1000)}, "outputs/zeros")
    >>> loader = FastLoader(open_store(root), batch_size=64, shuffle=True)
    """
    folder = store_folder(root)
    if images is not None:
        if ragged or strings or allow_random:
            names = "ragged, strings and allow_random"
            raise ValueError(f"images={images!r}: {names} are settings of samples")
        if num_workers < 0:
            raise ValueError(f"num_workers={num_workers}: allowed are 0 or more")
        return write_image_store(
            dataset, folder, images, overwrite=overwrite, num_threads=num_workers
        )
    source = _open_source(dataset, strings)
    if isinstance(source, StoreSamples) and not allow_random:
        refuse_random(source.samples, f"dataset={type(dataset).__name__}", _describe_ways(dataset))
    # Leaves with texts differ in length, too.
    is_jagged = ragged or strings == "keep"
    with hold_lock(folder):
        if not folder.exists() or _needs_writing(folder, source, overwrite, is_jagged):
            chunks = _check_alike(_with_bar(_chunks(source, num_workers, is_jagged), source))
            jagged = source if is_jagged and not _is_tree(source) else None
            _write_files(folder, chunks, jagged, ragged)
    return folder


def open_store(root: str | Path) -> Tree:
    """The tree of read-only, memory-mapped arrays of a store, for FastLoader.

    root: the folder that `write_store` has written, or its result. The tree has the structure of a
    sample, and each leaf the number of samples as its first dimension. Raises FileNotFoundError if
    there is no store, and BadData, naming the file, if a file is broken.
    """
    folder = store_folder(root)
    if not (folder / STRUCTURE).is_file():
        raise FileNotFoundError(errno.ENOENT, "no store here; write_store writes one", str(folder))
    return mark_columns(_open_tree(folder))


def _open_tree(folder: Path) -> Tree:
    """The tree of a store's arrays; raises BadData that names a broken file."""
    tree = open_ragged(folder, open_npy(folder, "r"))
    check_lengths(folder, tree)
    return tree


def _describe_ways(dataset: Any) -> str:
    """The remedies for random samples, in words."""
    ways = ["FastLoader(dataset) draws anew in each epoch"]
    # torchvision's ImageFolder has such a list of files.
    if isinstance(getattr(dataset, "samples", None), list):
        ways.append('images="as_is" stores the files of an image folder')
    return ", ".join([*ways, "allow_random=True stores one draw of each"])


def _open_source(dataset: Any, strings: str | None) -> Any:
    """The dataset as a tree of columns, or as samples in the form in which they are stored; raises
    ValueError if it is neither."""
    # A TensorDataset is a tree of tensors, which is written without reading sample by sample. A
    # subclass may have another __getitem__.
    source = ColumnList(dataset.tensors) if type(dataset) is TensorDataset else dataset
    if strings not in (None, "keep", "leave_out"):
        raise ValueError(f"strings={strings!r}: allowed are 'keep', 'leave_out' and None")
    # A list may be a tree of tensors, too. It is taken for a list of samples; ColumnList marks
    # lists of columns.
    if type(source) is not list and _is_tree(source):
        return list(source) if type(source) is ColumnList else source
    if not is_iterable(source) or type(source) is ColumnList:
        allowed = "allowed: a Dataset, an iterable of samples, or a tree of tensors or arrays"
        raise ValueError(f"dataset={type(source).__name__}: {allowed}")
    return (StoreSamples if _has_indices(source) else StoreStream)(source, strings)


def _needs_writing(folder: Path, source: Any, overwrite: bool, is_jagged: bool) -> bool:
    """False if the existing folder is a store of the same data; raises FileExistsError if it must
    not be replaced.

    is_jagged: leaves may differ in length.
    """
    check_is_store(folder)
    if overwrite or (_has_indices(source) and _holds(folder, source, is_jagged)):
        return overwrite
    if not _has_indices(source):
        raise other_data_error(folder, "a store is here, and an iterable can't be compared with it")
    raise other_data_error(folder)


def _holds(folder: Path, source: Any, is_jagged: bool) -> bool:
    leaves, structure = pytree.tree_flatten(_open_tree(folder))
    count = _count(source)
    if {len(leaf) for leaf in leaves} != {count}:
        return False
    indices = spread_indices(count)
    read, same = pytree.tree_flatten(_read(source, indices, is_jagged))
    if same != structure:
        return False
    pairs = zip(read, leaves, strict=True)
    return all(
        _leaf_bits(leaf) == _leaf_bits(select_rows(its, leaf, indices)) for leaf, its in pairs
    )


def _leaf_bits(leaf: torch.Tensor | JaggedTensor) -> tuple[object, ...]:
    if isinstance(leaf, JaggedTensor):
        return *_leaf_bits(leaf.values), *_leaf_bits(leaf.lengths)
    return leaf.dtype, leaf.shape, bytes(bytes_of(leaf))


def _write_files(folder: Path, chunks: Iterator[Tree], jagged: Any, ragged: bool) -> None:
    """Write the chunks to a folder beside this one, which then replaces this one.

    jagged: the samples of chunks with leaves that may differ in length; None: no leaf does. ragged:
    leaves that are not texts may differ in length, too. Raises ValueError if there is no chunk.
    """
    with write_beside(folder) as beside:
        beside.mkdir()
        if jagged is not None:
            write_ragged(beside, chunks, jagged, ragged)
        else:
            write_npy(beside, chunks, None)
        if not (beside / STRUCTURE).exists():
            raise ValueError(f"{folder}: there are no samples to write")
        for path in beside.iterdir():
            flush_to_disk(path)


def _chunks(source: Any, num_workers: int, is_jagged: bool) -> Iterator[Tree]:
    """Yield all samples in batches of about CHUNK_BYTES."""
    if not _has_indices(source):
        yield from _chunks_of(iter(source), is_jagged)
        return
    count = _count(source)
    if not count:
        return
    size = _rows_per_chunk(_read(source, [0], is_jagged))
    if _is_tree(source):
        for start in range(0, count, size):
            yield _read(source, slice(start, start + size))
        return
    chunks = collate_chunks(source, size, num_workers, ragged=is_jagged)
    yield from (chunk.batch for chunk in chunks)


def _with_bar(chunks: Iterator[Tree], source: Any) -> Iterator[Tree]:
    """Yield the chunks, with a bar if that takes longer than a second."""
    with sample_bar(_count(source) if _has_indices(source) else None, "write_store") as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(pytree.tree_leaves(chunk)[0]))


def _check_alike(chunks: Iterator[Tree]) -> Iterator[Tree]:
    """Yield the chunks; raises SamplesDiffer if their trees, dtypes or shapes differ."""
    # Collating a chunk compares its samples with each other, but not with another chunk's.
    first, done = None, 0
    for chunk in chunks:
        leaves, structure = pytree.tree_flatten(chunk)
        kinds = structure, [(str(leaf.dtype), tuple(leaf.shape[1:])) for leaf in leaves]
        first = first or kinds
        if kinds != first:
            pair = f"up to {done} they are {first[1]}, from it on {kinds[1]}"
            raise SamplesDiffer(f"samples differ: {pair}")
        yield chunk
        done += len(leaves[0])


def _chunks_of(samples: Iterator[Any], is_jagged: bool) -> Iterator[Tree]:
    # The size of a sample is known only once it has been read. Ragged samples may grow, so the size
    # of each chunk follows from its first sample, but it never exceeds that of the chunk before.
    numbered = ((index, sample, "") for index, sample in enumerate(samples))
    size = MOST_SAMPLES
    for first in numbered:
        size = min(size, _rows_per_chunk(collate_chunk([first], is_jagged).batch))
        yield collate_chunk([first, *islice(numbered, size - 1)], is_jagged).batch


def _rows_per_chunk(batch_of_one: Tree) -> int:
    nbytes = sum(leaf.nbytes for leaf in pytree.tree_leaves(batch_of_one))
    return max(1, min(MOST_SAMPLES, CHUNK_BYTES // max(1, nbytes)))


def _read(source: Any, indices: Any, is_jagged: bool = False) -> Tree:
    """The samples of these indices as a batch; for a tree, `indices` may also be a slice."""
    if _is_tree(source):
        return pytree.tree_map(lambda leaf: torch.as_tensor(leaf[indices]), source)
    return collate_chunk([(index, source[index], "") for index in indices], is_jagged).batch


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
    # IterableDataset inherits a __getitem__ from Dataset, which only raises.
    if isinstance(source, IterableDataset):
        return False
    return _is_tree(source) or (hasattr(source, "__getitem__") and hasattr(source, "__len__"))


@dataclass(frozen=True)
class StoreSamples:
    """The samples of a map-style dataset, in the form in which they are stored."""

    samples: Any
    strings: str | None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree:
        return prepare_sample(self.samples[index], self.strings, index == 0)

    @property
    def texts(self) -> list[bool]:
        """True for each leaf of a sample that is a text."""
        keeps = self.strings == "keep" and len(self) > 0
        return _find_texts(self.samples[0]) if keeps else []


@dataclass
class StoreStream(IterableDataset):
    """The samples of an iterable, in the form in which they are stored."""

    samples: Iterable[Any]
    strings: str | None
    texts: list[bool] = field(default_factory=list)
    """True for each leaf of a sample that is a text; empty until the first sample has been read."""

    def __iter__(self) -> Iterator[Tree]:
        for number, sample in enumerate(self.samples):
            if not number and self.strings == "keep":
                self.texts = _find_texts(sample)
            yield prepare_sample(sample, self.strings, number == 0)


def prepare_sample(sample: Tree, strings: str | None, is_first: bool) -> Tree:
    """The sample with its texts as uint8 tensors, or without them.

    Raises BadData, naming the leaf, for a text in the first sample if `strings` is None.
    """
    if strings == "leave_out":
        return _without_texts(sample)
    if strings == "keep":
        return pytree.tree_map(_encode_text, sample)
    # Texts are searched for in the first sample only, because a search in each would take time.
    for path, leaf in pytree.tree_flatten_with_path(sample)[0] if is_first else ():
        if isinstance(leaf, str):
            raise BadData(f"sample{pytree.keystr(path)} is a text: {TEXTS_ALLOWED}")
    return sample


def _encode_text(leaf: Any) -> Any:
    if not isinstance(leaf, str):
        return leaf
    return torch.from_numpy(np.frombuffer(leaf.encode(), np.uint8).copy())


def _find_texts(sample: Tree) -> list[bool]:
    return [isinstance(leaf, str) for leaf in pytree.tree_leaves(sample)]


def _without_texts(sample: Tree) -> Tree:
    if isinstance(sample, dict):
        return {key: _without_texts(value) for key, value in _others(sample.items())}
    if type(sample) in (list, tuple):
        return type(sample)(_without_texts(value) for _, value in _others(enumerate(sample)))
    return sample


def _others(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    return ((key, value) for key, value in items if not isinstance(value, str))
