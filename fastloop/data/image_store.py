"""Write the stores of encoded images, which write_store makes if its argument `images` is given.

The source and the store are trees of columns: image files, as bytes, and arrays, such as labels.
For each column of images, the store has a file with the bytes of all images and a file with their
offsets. The returned StoredImages has the cost of writing the store, and the time that each crop
from it saves, measured on some of the images.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.atomic_files import flush_to_disk, hold_lock, write_beside
from fastloop.core.bars import sample_bar
from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns, process_cpu_ns, seconds_between
from fastloop.core.types import BadData
from fastloop.data.crop_saving import measure_saving_ms
from fastloop.data.image_encodings import Encode, ImageEncoding, StoredAs, open_encoding
from fastloop.data.npy_store import ALTERNATIVE, FORMAT_NAME, STRUCTURE, open_npy, write_header
from fastloop.data.ragged_npy_store import OFFSETS, open_ragged
from fastloop.data.spread_indices import spread_indices
from fastloop.data.store_leaves import array_of, structure_text
from fastloop.data.store_replacement import COMPARED_SAMPLES, check_is_store, other_data_error
from fastloop.data.stored_images import IMAGES, StoredImages, load_stored, save_stored
from fastloop.fastloader.columns.encoded_images import EncodedImages, open_images
from fastloop.fastloader.columns.image_headers import Encoded
from fastloop.fastloader.columns.ragged_rows import RaggedRows
from fastloop.fastloader.thread_map import map_ahead

IMAGES_AHEAD = 16
"""Number of images that each thread encodes ahead of the writer, which bounds the memory."""
COPIED_ROWS = 4096
"""Number of rows of an array that are copied at a time, if its memory is not contiguous."""
ALLOWED = "lists of paths or of bytes, with tensors, arrays or lists of numbers beside them"
"""The allowed columns of a source, for messages."""


@dataclass(frozen=True)
class EncodedSource:
    """The leaves of a tree of columns of one length: encoded images, and arrays."""

    leaves: Sequence[EncodedImages | np.ndarray]
    structure: pytree.TreeSpec

    def __len__(self) -> int:
        return len(self.leaves[0])


@dataclass(frozen=True)
class _EncodedImage:
    """An image as it is stored."""

    source_nbytes: int
    """Number of bytes of the image in the source."""
    data: Encoded
    stored_as: StoredAs


@dataclass
class _Tally:
    """Counts of the written images, and of their bytes in the source and in the store."""

    stored_as: Counter[StoredAs] = field(default_factory=Counter)
    """Number of images by the way in which they are stored."""
    before: int = 0
    """Bytes of the images in the source."""
    after: int = 0
    """Bytes of the images in the store."""


def write_image_store(
    source: Any, folder: Path, images: ImageEncoding, *, overwrite: bool, num_threads: int
) -> StoredImages:
    """Write a store of encoded images, or find the same one in the folder; see write_store.

    num_threads: number of threads that encode; 0: one for each core. Raises FileExistsError if the
    folder is not a store, or if it is a store of other data and `overwrite` is False.
    """
    encode = open_encoding(images)
    columns = _read_source(source)
    with hold_lock(folder):
        if folder.exists():
            check_is_store(folder)
            if not overwrite:
                return _find_same(folder, columns, encode, str(images))
        with write_beside(folder) as beside:
            beside.mkdir()
            start_ns, cpu_start_ns = now_ns(), process_cpu_ns()
            tally = _write_columns(beside, columns, encode, num_threads or usable_cores())
            end_ns, cpu_end_ns = now_ns(), process_cpu_ns()
            stored = StoredImages(
                root=folder,
                encoding=str(images),
                num_images=tally.stored_as.total(),
                num_transcoded=tally.stored_as["transcoded"],
                num_resized=tally.stored_as["resized"],
                bytes_before=tally.before,
                bytes_after=tally.after,
                seconds=seconds_between(start_ns, end_ns),
                cpu_seconds=seconds_between(cpu_start_ns, cpu_end_ns),
                saved_ms=_measure_saving_ms(beside, columns),
            )
            save_stored(stored, beside)
            flush_to_disk(beside / IMAGES)
    return stored


def _read_source(source: Any) -> EncodedSource:
    """The columns of a tree, or the files and classes of torchvision's ImageFolder.

    Raises ValueError for a source without images, for leaves of other kinds, and for columns of
    several lengths.
    """
    leaves, structure = pytree.tree_flatten(_columns_of(source), is_leaf=_is_column)
    columns = [_open_column(leaf) for leaf in leaves]
    if all(isinstance(column, np.ndarray) for column in columns):
        raise ValueError(f"images= stores encoded images: allowed are {ALLOWED}")
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        raise ValueError(f"images= stores columns of one length, got {lengths}")
    return EncodedSource(columns, structure)


def _columns_of(source: Any) -> Any:
    # torchvision's ImageFolder has a list of (path, class).
    samples = getattr(source, "samples", None)
    if isinstance(samples, list):
        paths, classes = zip(*samples, strict=True)
        return list(paths), torch.tensor(classes)
    return source


def _is_column(node: Any) -> bool:
    """True for a list of paths, of bytes or of numbers: the list is one column, not a tree of
    columns."""
    # Only the first element is examined, because the list may have millions of them.
    is_tree_of = dict, list, tuple, torch.Tensor, np.ndarray, RaggedRows
    return isinstance(node, list) and bool(node) and not isinstance(node[0], is_tree_of)


def _open_column(leaf: Any) -> EncodedImages | np.ndarray:
    if isinstance(leaf, torch.Tensor):
        return array_of(leaf, FORMAT_NAME, ALTERNATIVE)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        return leaf
    if isinstance(leaf, RaggedRows):
        return open_images(leaf)
    if not isinstance(leaf, list):
        raise ValueError(f"images= stores no {type(leaf).__name__}: allowed are {ALLOWED}")
    if isinstance(leaf[0], str | os.PathLike | bytes | bytearray | memoryview):
        return open_images(leaf)
    return _open_column(np.asarray(leaf))


def _write_columns(folder: Path, source: EncodedSource, encode: Encode, num_threads: int) -> _Tally:
    """Write the structure of the tree and all of its columns into the folder, and to the disk."""
    tally = _Tally()
    (folder / STRUCTURE).write_text(structure_text(source.structure, FORMAT_NAME))
    for number, column in enumerate(source.leaves):
        if isinstance(column, np.ndarray):
            _write_array(folder / f"{number}.npy", column)
        else:
            work = partial(_encode_image, column, encode)
            encoded = map_ahead(work, range(len(column)), num_threads, IMAGES_AHEAD)
            with closing(encoded), sample_bar(len(column), "write_store") as bar:
                _write_images(folder, number, encoded, tally, bar)
    for path in folder.iterdir():
        flush_to_disk(path)
    return tally


def _write_images(
    folder: Path, number: int, images: Iterable[_EncodedImage], tally: _Tally, bar: Any
) -> None:
    """Write column `number`: a file with the bytes of all images, and one with their offsets.

    tally, bar: count the images.
    """
    offsets = [0]
    nothing = np.empty(0, np.uint8)
    with (folder / f"{number}.npy").open("wb") as file:
        write_header(file, nothing, (0,))
        for image in images:
            file.write(image.data)
            offsets.append(offsets[-1] + len(image.data))
            tally.stored_as[image.stored_as] += 1
            tally.before += image.source_nbytes
            bar.update()
        tally.after += offsets[-1]
        # The number of bytes is known only now. numpy pads its header so that the first dimension
        # can grow to any length in place (GROWTH_AXIS_MAX_DIGITS of numpy.lib.format).
        file.seek(0)
        write_header(file, nothing, (offsets[-1],))
    np.save(folder / f"{number}.{OFFSETS}", np.array(offsets, np.int64))


def _encode_image(images: EncodedImages, encode: Encode, index: int) -> _EncodedImage:
    """Encode an image; raises BadData for an empty file."""
    data = images.read(index)
    if not len(data):
        raise BadData(f"{images.name(index)}: the file is empty")
    return _EncodedImage(len(data), *encode(data))


def _write_array(path: Path, array: np.ndarray) -> None:
    """Write an array as an npy file, COPIED_ROWS rows at a time."""
    with path.open("wb") as file:
        write_header(file, array, array.shape)
        for start in range(0, len(array), COPIED_ROWS):
            file.write(np.ascontiguousarray(array[start : start + COPIED_ROWS]).data)


def _find_same(folder: Path, source: EncodedSource, encode: Encode, encoding: str) -> StoredImages:
    """The figures that were saved when the store in the folder was written.

    encoding: name of the encoding `encode`. Raises FileExistsError if the store holds other data.
    """
    stored = load_stored(folder)
    if stored is None:
        raise other_data_error(folder, "a store of samples is here, not of encoded images")
    if stored.encoding != encoding:
        raise other_data_error(folder, f"a store of images={stored.encoding!r} is here")
    if not _holds(folder, source, encode):
        raise other_data_error(folder)
    return stored


def _open_leaves(folder: Path) -> tuple[list[Any], pytree.TreeSpec]:
    """The opened columns of the store in the folder, and the structure of their tree."""
    return pytree.tree_flatten(open_ragged(folder, open_npy(folder, "r")))


def _holds(folder: Path, source: EncodedSource, encode: Encode) -> bool:
    """True if the store has the tree and the number of samples of the source, and a selection of
    samples is equal."""
    leaves, structure = _open_leaves(folder)
    if structure != source.structure or {len(leaf) for leaf in leaves} != {len(source)}:
        return False
    indices = spread_indices(len(source), COMPARED_SAMPLES)
    pairs = zip(source.leaves, leaves, strict=True)
    return all(_has_equal_rows(column, leaf, indices, encode) for column, leaf in pairs)


def _has_equal_rows(
    column: EncodedImages | np.ndarray, leaf: Any, indices: Sequence[int], encode: Encode
) -> bool:
    """True if these rows of a column, encoded if they are images, equal those of the store."""
    if isinstance(column, np.ndarray):
        rows, stored = column[indices], leaf[indices]
        return (rows.dtype, rows.shape) == (stored.dtype, stored.shape) and (
            rows.tobytes() == stored.tobytes()
        )
    images = open_images(leaf)
    return all(
        bytes(encode(column.read(index))[0]) == bytes(images.read(index)) for index in indices
    )


def _measure_saving_ms(folder: Path, source: EncodedSource) -> float | None:
    """Milliseconds of CPU time that the store saves per crop, in the first column of images.

    None if none of the images that are tried can be decoded.
    """
    leaves, _ = _open_leaves(folder)
    pairs = zip(source.leaves, leaves, strict=True)
    before, after = next(
        (column, leaf) for column, leaf in pairs if not isinstance(column, np.ndarray)
    )
    return measure_saving_ms(before, open_images(after))
