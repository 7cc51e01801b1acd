"""write_image_store: writes the stores of encoded images that write_store makes with `images`.

A store holds columns of image files, as bytes, and columns of labels. For each column of images
there is a file with the bytes of all images and a file with their offsets. The returned
StoredImages has the cost of writing the store, and the time that each crop from it saves, measured
on some of the images.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
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
from fastloop.data.npy_store import (
    ALTERNATIVE,
    FORMAT_NAME,
    IMAGES,
    OFFSETS,
    STRUCTURE,
    check_is_store,
    open_npy,
    open_ragged,
    other_data_error,
    spread_indices,
    write_header,
)
from fastloop.data.store_leaves import array_of, structure_text
from fastloop.fastloader.columns.encoded_images import EncodedImages, open_images
from fastloop.fastloader.columns.image_headers import Encoded
from fastloop.fastloader.columns.ragged_rows import RaggedRows
from fastloop.fastloader.thread_map import map_ahead

IMAGES_AHEAD = 16
"""Number of images that each thread encodes ahead of the writer, which bounds the memory."""
COPIED_ROWS = 4096
"""Number of rows of an array that are copied at a time, if its memory is not contiguous."""
ALLOWED = "lists of paths or of bytes, with tensors, arrays or lists of numbers beside them"


@dataclass
class _Tally:
    """Counts of the written images, and of their bytes in the source and in the store."""

    stored_as: Counter[StoredAs] = field(default_factory=Counter)
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class _ImageWriter:
    """Encodes the images of a source in threads, and writes them in order."""

    encode: Encode
    num_threads: int
    tally: _Tally = field(default_factory=_Tally)

    def write(self, folder: Path, number: int, images: EncodedImages) -> None:
        """Write column `number`: values and offsets."""
        work = partial(_encode_image, images, self.encode)
        results = map_ahead(work, range(len(images)), self.num_threads, IMAGES_AHEAD)
        offsets = [0]
        tally = self.tally
        nothing = np.empty(0, np.uint8)
        with (
            (folder / f"{number}.npy").open("wb") as file,
            closing(results),
            sample_bar(len(images), "write_store") as bar,
        ):
            write_header(file, nothing, (0,))
            for nbytes, data, stored_as in results:
                file.write(data)
                offsets.append(offsets[-1] + len(data))
                tally.stored_as[stored_as] += 1
                tally.before += nbytes
                bar.update()
            tally.after += offsets[-1]
            # The number of bytes is known only now. numpy pads its header so that the first
            # dimension can grow to any length in place (GROWTH_AXIS_MAX_DIGITS of
            # numpy.lib.format).
            file.seek(0)
            write_header(file, nothing, (offsets[-1],))
        np.save(folder / f"{number}.{OFFSETS}", np.array(offsets, np.int64))


def write_image_store(
    source: Any, folder: Path, images: ImageEncoding, *, overwrite: bool, num_threads: int
) -> StoredImages:
    """Write a store of encoded images, or find the same one in the folder; see write_store.

    num_threads: number of threads that encode; 0: one for each core.
    """
    encode = open_encoding(images)
    columns = read_encoded_source(source)
    writer = _ImageWriter(encode, num_threads or usable_cores())
    with hold_lock(folder):
        if folder.exists():
            check_is_store(folder)
            if not overwrite:
                return _find_same(folder, columns, encode, str(images))
        with write_beside(folder) as beside:
            beside.mkdir()
            start_ns, cpu_start_ns = now_ns(), process_cpu_ns()
            _write_columns(beside, columns, writer)
            end_ns, cpu_end_ns = now_ns(), process_cpu_ns()
            tally = writer.tally
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


def _encode_image(
    images: EncodedImages, encode: Encode, index: int
) -> tuple[int, Encoded, StoredAs]:
    """Number of bytes in the source, the bytes to store, and how these were made.

    Raises BadData for an empty file.
    """
    data = images.read(index)
    if not len(data):
        raise BadData(f"{images.name(index)}: the file is empty")
    return len(data), *encode(data)


def _write_columns(folder: Path, source: EncodedSource, writer: _ImageWriter) -> None:
    (folder / STRUCTURE).write_text(structure_text(source.structure, FORMAT_NAME))
    for number, column in enumerate(source.leaves):
        if isinstance(column, np.ndarray):
            _write_array(folder / f"{number}.npy", column)
        else:
            writer.write(folder, number, column)
    for path in folder.iterdir():
        flush_to_disk(path)


def _write_array(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        write_header(file, array, array.shape)
        for start in range(0, len(array), COPIED_ROWS):
            file.write(np.ascontiguousarray(array[start : start + COPIED_ROWS]).data)


def _find_same(folder: Path, source: EncodedSource, encode: Encode, encoding: str) -> StoredImages:
    """The figures that the store's writer has saved; raises FileExistsError if the store holds
    other data."""
    stored = load_stored(folder)
    if stored is None:
        raise other_data_error(folder, "a store of samples is here, not of encoded images")
    if stored.encoding != encoding:
        raise other_data_error(folder, f"a store of images={stored.encoding!r} is here")
    if not _holds(folder, source, encode):
        raise other_data_error(folder)
    return stored


def _open_leaves(folder: Path) -> tuple[list[Any], pytree.TreeSpec]:
    return pytree.tree_flatten(open_ragged(folder, open_npy(folder, "r")))


def _holds(folder: Path, source: EncodedSource, encode: Encode) -> bool:
    """True if the store has as many samples as the source, and a selection of samples is equal."""
    leaves, structure = _open_leaves(folder)
    if structure != source.structure or {len(leaf) for leaf in leaves} != {len(source)}:
        return False
    indices = spread_indices(len(source))
    pairs = zip(source.leaves, leaves, strict=True)
    return all(_has_equal_rows(column, leaf, indices, encode) for column, leaf in pairs)


def _has_equal_rows(
    column: EncodedImages | np.ndarray, leaf: Any, indices: Sequence[int], encode: Encode
) -> bool:
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
    """Milliseconds of CPU time saved per crop of the first column of images; None if none of the
    images that are tried can be decoded."""
    leaves, _ = _open_leaves(folder)
    pairs = zip(source.leaves, leaves, strict=True)
    before, after = next(
        (column, leaf) for column, leaf in pairs if not isinstance(column, np.ndarray)
    )
    return measure_saving_ms(before, open_images(after))


@dataclass(frozen=True)
class EncodedSource:
    """The leaves of a tree of columns of one length: encoded images, and arrays."""

    leaves: Sequence[EncodedImages | np.ndarray]
    structure: pytree.TreeSpec

    def __len__(self) -> int:
        return len(self.leaves[0])


def read_encoded_source(source: Any) -> EncodedSource:
    """The columns of a tree, or the files and classes of torchvision's ImageFolder.

    Raises ValueError if there are no images, other leaves, or columns of several lengths.
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


@dataclass(frozen=True)
class StoredImages:
    """A store of encoded images: its path for open_store, the cost of writing it, and its savings.

    If the store existed already, the figures are from the call that wrote it. `print` shows them in
    one line.
    """

    root: Path
    encoding: str
    num_images: int
    num_transcoded: int
    """JPEGs that got restart markers, with the same pixels."""
    num_resized: int
    """JPEGs that were made smaller. All other images are stored as they were."""
    bytes_before: int
    """Bytes of the images in the source."""
    bytes_after: int
    """Bytes of the images in the store."""
    seconds: float
    """Seconds that writing the store took."""
    cpu_seconds: float
    """CPU time of all threads in these seconds."""
    saved_ms: float | None
    """Milliseconds of CPU time that a RandomResizedCrop(224) from the store saves, compared with
    one from the source: the mean of up to 64 images. None if none of them could be decoded."""

    def __fspath__(self) -> str:
        return str(self.root)

    @property
    def epochs_to_pay_back(self) -> float | None:
        """Number of epochs after which the faster crops have saved the CPU time of writing; None if
        they never do."""
        if self.saved_ms is None or self.saved_ms <= 0:
            return None
        return 1e3 * self.cpu_seconds / (self.num_images * self.saved_ms)

    def __str__(self) -> str:
        kept = self.num_images - self.num_transcoded - self.num_resized
        counts = {
            "with restart markers": self.num_transcoded,
            "resized": self.num_resized,
            "as they were": kept,
        }
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        parts.append(f"{self.bytes_before / 2**20:.1f} MiB before")
        parts.append(f"{self.bytes_after / 2**20:.1f} MiB after")
        if self.saved_ms is not None:
            parts.append(f"{self.saved_ms:.3f} ms of CPU time saved a crop")
        epochs = self.epochs_to_pay_back
        parts.append("not paid back" if epochs is None else f"paid back after {epochs:.1f} epochs")
        seconds = f"{self.seconds:.1f} s ({self.cpu_seconds:.1f} s of CPU time)"
        images = f"{self.num_images} images in {seconds}"
        return f"{self.root}: {images}: {', '.join(parts)}"


def save_stored(stored: StoredImages, folder: Path) -> None:
    """Write the figures of the store into its folder."""
    # The path is left out, because the folder may be moved.
    facts = {name: value for name, value in asdict(stored).items() if name != "root"}
    (folder / IMAGES).write_text(json.dumps(facts, indent=1))


def load_stored(folder: Path) -> StoredImages | None:
    """The figures in a store's folder; None for a folder without encoded images."""
    path = folder / IMAGES
    return StoredImages(folder, **json.loads(path.read_text())) if path.is_file() else None
