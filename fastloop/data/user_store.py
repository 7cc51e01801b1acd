"""Write a user's dataset to a store with `write_store`, and open the store with `open_store`.

A store is a folder with a .npy file for each leaf of the samples, or with encoded images.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, Literal, overload

import torch
from torch.utils import _pytree as pytree

from fastloop.core.atomic_files import flush_to_disk, hold_lock, write_beside
from fastloop.core.bars import sample_bar
from fastloop.core.types import BadData, LengthsDiffer, SamplesDiffer, Tree
from fastloop.data.image_encodings import ImageEncoding
from fastloop.data.image_store import write_image_store
from fastloop.data.npy_store import STRUCTURE, open_npy, write_npy
from fastloop.data.ragged import STORES_RAGGED, RaggedTensor, difference_error
from fastloop.data.ragged_npy_store import open_ragged, select_rows, write_ragged
from fastloop.data.random_samples import refuse_random
from fastloop.data.spread_indices import spread_indices
from fastloop.data.store_leaves import bytes_of
from fastloop.data.store_replacement import COMPARED_SAMPLES, check_is_store, other_data_error
from fastloop.data.store_sources import (
    SampleSource,
    StoreSource,
    StreamSource,
    TreeSource,
    open_source,
)
from fastloop.data.stored_images import StoredImages
from fastloop.fastloader.columns.column import mark_columns


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

    The folder is written atomically. About 2 MiB of samples, or one larger sample, are in memory at
    a time; more with `num_workers` or `images`.

    Returns the absolute path of the folder or, with `images`, `StoredImages`, which has the path,
    the cost of writing and the savings of reading.

    An existing store is kept if it holds the same data. For that, the numbers of samples must be
    equal, and up to 16 samples, spread evenly, must be equal bit by bit. If the store holds other
    data, or the dataset can only be iterated over, FileExistsError is raised unless overwrite=True.
    A folder that is not a store is never replaced.

    Args:
        dataset: a map-style Dataset or an iterable of samples of one shape, which torch's
            default_collate collates; or a tree of tensors or arrays of one length; or, with
            `images`, image files.
        root: path of the folder.
        overwrite: True: write the store anew, and replace an existing one.
        num_workers: number of processes that read a Dataset; 0: this process. With `images`, number
            of threads; 0: one for each core.
        ragged: True: leaves may differ in their first dimension between samples. Such leaves are
            stored with offsets. In batches, each becomes (padded, lengths). If FastLoader is given
            a collate_fn, it passes the samples to this function instead.
        strings: "keep": store the texts of samples; batches have lists of texts. "leave_out": drop
            the texts. None: raise BadData for a text.
        images: store image files undecoded, for `Images`. The dataset is then a list of paths or of
            the files' bytes, a tree of such lists and of labels, or torchvision's ImageFolder.
            "as_is" stores each file as it is. "jpeg" stores JPEGs with restart markers: the pixels
            are the same, and a crop is decoded faster. `LongestSide(pixels, quality)` also makes
            large JPEGs smaller. Other files are stored as they are.
        allow_random: True: store one draw of random samples, such as augmented ones. A store
            repeats that draw in every epoch, so a Dataset of random samples is refused otherwise.
            To find out, up to 16 samples are read twice.

    Raises FileExistsError, OSError, ValueError for a dataset without samples or of random ones,
    BadData for samples that differ or can't be read, and Unsupported for trees and dtypes that .npy
    files can't hold.

    >>> root = write_store({"x": torch.zeros(1000, 8), "y": torch.arange(1000)}, "outputs/zeros")
    >>> loader = FastLoader(open_store(root), batch_size=64, shuffle=True)
    """
    folder = _folder_of(root)
    if images is not None:
        if ragged or strings or allow_random:
            names = "ragged, strings and allow_random"
            raise ValueError(f"images={images!r}: {names} are settings of samples")
        if num_workers < 0:
            raise ValueError(f"num_workers={num_workers}: allowed are 0 or more")
        return write_image_store(
            dataset, folder, images, overwrite=overwrite, num_threads=num_workers
        )
    if strings not in (None, "keep", "leave_out"):
        raise ValueError(f"strings={strings!r}: allowed are 'keep', 'leave_out' and None")
    # Texts differ in length, too.
    may_differ = ragged or strings == "keep"
    source = open_source(dataset, strings, may_differ=may_differ, num_workers=num_workers)
    if isinstance(source, SampleSource) and not allow_random:
        refuse_random(dataset, f"dataset={type(dataset).__name__}", _describe_ways(dataset))
    with hold_lock(folder):
        if not folder.exists() or _needs_writing(folder, source, overwrite):
            # These samples could be padded. They are refused only because ragged=True is missing.
            try:
                _write_files(folder, source, ragged)
            except LengthsDiffer as error:
                raise SamplesDiffer(f"{error}; {STORES_RAGGED}") from error
    return folder


def open_store(root: str | Path) -> Tree:
    """Open a store as a tree of read-only, memory-mapped arrays, for FastLoader.

    root: the folder that `write_store` has written, or the result of `write_store`. The tree has
    the structure of a sample, and each leaf has a row for each sample. Raises FileNotFoundError if
    there is no store, and BadData, naming the file, if a file is broken.
    """
    folder = _folder_of(root)
    if not (folder / STRUCTURE).is_file():
        raise FileNotFoundError(errno.ENOENT, "no store here; write_store writes one", str(folder))
    return mark_columns(_open_tree(folder))


def _folder_of(root: Any) -> Path:
    """The absolute path of a store's folder.

    Raises TypeError if `root` is not a path, and ValueError if the path is empty.
    """
    if not isinstance(root, str | os.PathLike):
        raise TypeError(f"root={short_repr(root)}: allowed is the path of a folder")
    # Path("") is the working folder, which nobody means to replace.
    if not os.fspath(root):
        raise ValueError("root='': allowed is the path of a folder")
    return Path(root).absolute()


def _open_tree(folder: Path) -> Tree:
    """The tree of a store's arrays; raises BadData, naming the file, if a file is broken."""
    tree = open_ragged(folder, open_npy(folder, "r"))
    _check_lengths(folder, tree)
    return tree


def _check_lengths(folder: Path, tree: Any) -> None:
    """Raise BadData if the leaves of a store's opened tree differ in length."""
    leaves = pytree.tree_leaves(tree)
    if any(getattr(leaf, "ndim", 1) == 0 for leaf in leaves):
        raise BadData(f"{folder}: a broken store: a leaf has no rows")
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise BadData(f"{folder}: a broken store: its leaves have {lengths} rows")


def _describe_ways(dataset: Any) -> str:
    """The remedies for random samples, in words."""
    ways = ["FastLoader(dataset) draws again in each epoch"]
    # torchvision's ImageFolder has such a list of files.
    if isinstance(getattr(dataset, "samples", None), list):
        ways.append('images="as_is" stores the files of an image folder')
    return ", ".join([*ways, "allow_random=True stores one draw of each"])


def _needs_writing(folder: Path, source: StoreSource, overwrite: bool) -> bool:
    """True if the existing folder has to be replaced; False if it is a store of the same data.

    Raises FileExistsError if the folder has other contents, and must not be replaced.
    """
    check_is_store(folder)
    if overwrite:
        return True
    if isinstance(source, StreamSource):
        raise other_data_error(folder, "a store is here, and an iterable can't be compared with it")
    if _holds(folder, source):
        return False
    raise other_data_error(folder)


def _holds(folder: Path, source: TreeSource | SampleSource) -> bool:
    """True if the store has the source's number of samples, and the compared ones are equal."""
    stored, structure = pytree.tree_flatten(_open_tree(folder))
    if {len(leaf) for leaf in stored} != {source.count}:
        return False
    indices = spread_indices(source.count, COMPARED_SAMPLES)
    read, new_structure = pytree.tree_flatten(source.read(indices))
    return structure == new_structure and all(
        _leaf_bits(new) == _leaf_bits(select_rows(old, new, indices))
        for new, old in zip(read, stored, strict=True)
    )


def _leaf_bits(leaf: torch.Tensor | RaggedTensor) -> tuple[object, ...]:
    """The dtype, shape and bytes of a leaf, by which leaves are compared bit by bit."""
    if isinstance(leaf, RaggedTensor):
        return *_leaf_bits(leaf.values), *_leaf_bits(leaf.lengths)
    return leaf.dtype, leaf.shape, bytes(bytes_of(leaf))


def _write_files(folder: Path, source: StoreSource, ragged: bool) -> None:
    """Write the source to a temporary folder beside `folder`, which then replaces `folder`.

    ragged: True: not only texts, but all leaves may differ in length. Raises ValueError if there
    are no samples.
    """
    chunks = _check_alike(_with_bar(source))
    with write_beside(folder) as beside:
        beside.mkdir()
        if source.may_differ:
            write_ragged(beside, chunks, source, ragged)
        else:
            write_npy(beside, chunks, None)
        if not (beside / STRUCTURE).exists():
            raise ValueError(f"{folder}: there are no samples to write")
        for path in beside.iterdir():
            flush_to_disk(path)


def _with_bar(source: StoreSource) -> Iterator[Tree]:
    """Yield the source's chunks, and show a progress bar after a second.

    The bar is shown only on a terminal and in a notebook.
    """
    with sample_bar(source.count, "write_store") as bar:
        for chunk in source.chunks():
            yield chunk
            bar.update(len(pytree.tree_leaves(chunk)[0]))


def _check_alike(chunks: Iterator[Tree]) -> Iterator[Tree]:
    """Yield the chunks; raises SamplesDiffer if their trees, dtypes or shapes differ."""
    # Collating a chunk compares its samples with each other, but not with another chunk's.
    first = None
    done = 0
    for chunk in chunks:
        leaves, structure = pytree.tree_flatten(chunk)
        kinds = structure, tuple((str(leaf.dtype), tuple(leaf.shape[1:])) for leaf in leaves)
        first = first or kinds
        if kinds != first:
            pair = f"those before {done} are {first[1]}, {done} is {kinds[1]}"
            raise difference_error(f"samples differ: {pair}", [first, kinds])
        yield chunk
        done += len(leaves[0])
