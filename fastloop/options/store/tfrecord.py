"""`store=tfrecord`: one TFRecord file of tf.train.Example records, written without TensorFlow."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData, Tree, option
from fastloop.data.store_leaves import structure_text
from fastloop.data.tfrecord_format import check_installed, example_class, import_crc32c, mask_crc

NEEDED_BY = "store=tfrecord"
"""The option, as error messages name it."""
CRC = struct.Struct("<I")
"""The bytes of a masked checksum: uint32, little-endian."""
RECORDS, INDEX, LAYOUT = "rows.tfrecord", "offsets.npy", "layout.json"
"""Names of a store's files: the records, their offsets, and the text of `_layout`."""


@dataclass(frozen=True)
class RecordFile:
    """A TFRecord file that is not yet read: the offsets and the layout of its records."""

    path: Path
    offsets: np.ndarray
    """int64 (num_samples + 1,): the first byte of each record, and the end of the last one."""
    leaves: list[tuple[torch.dtype, list[int]]]
    """dtype and shape of each leaf of a sample; leaf k is the feature `k`."""
    structure: Any
    """torch's TreeSpec of a sample."""


@option
class TfRecordStore:
    """A TFRecord file with a tf.train.Example record for each sample, and an index of offsets.

    Leaf k of a sample is the feature `k`: a bytes_list with one value, the bytes of the leaf.
    TFRecord itself has no random access; the index allows any order. Both checksums of a record are
    written, because TensorFlow requires them.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def check_installed(self) -> None:
        """Raise Unsupported if crc32c is not installed."""
        check_installed(NEEDED_BY)

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write the records one after another, and then the index.

        Raises Unsupported if crc32c or protobuf is not installed.
        """
        example = example_class(NEEDED_BY)
        checksum = import_crc32c(NEEDED_BY)
        offsets = np.zeros(num_samples + 1, np.int64)
        count = 0
        with (folder / RECORDS).open("wb") as file:
            for chunk in chunks:
                leaves, structure = pytree.tree_flatten(chunk)
                if not count:
                    (folder / LAYOUT).write_text(_layout(leaves, structure))
                for row in _rows(leaves):
                    record = _serialize(example(), row)
                    length = struct.pack("<Q", len(record))
                    crcs = [CRC.pack(mask_crc(checksum(part))) for part in (length, record)]
                    file.writelines([length, crcs[0], record, crcs[1]])
                    count += 1
                    # TFRecord frames a record by its length and two checksums: 16 bytes.
                    offsets[count] = offsets[count - 1] + len(record) + 16
        np.save(folder / INDEX, offsets)

    def open(self, folder: Path) -> RecordFile:
        """The file with its index and its layout; no record is read.

        Raises BadData if a file can't be read, or the file's length does not match the index.
        """
        path = folder / RECORDS
        try:
            layout = json.loads((folder / LAYOUT).read_text())
            offsets = np.load(folder / INDEX, allow_pickle=False)
            size = path.stat().st_size
            leaves = [(getattr(torch, name), shape) for name, shape in layout["leaves"]]
            structure = pytree.treespec_loads(layout["structure"])
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise BadData(f"{folder}: not a TFRecord store: {error}") from error
        if size != offsets[-1]:
            raise BadData(f"{path}: {size} bytes, but its index ends at {offsets[-1]}")
        return RecordFile(path, offsets, leaves, structure)


def _layout(leaves: list[torch.Tensor], structure: Any) -> str:
    """The leaves' dtypes and shapes and their tree, as JSON."""
    dtypes_shapes = [
        (str(leaf.dtype).removeprefix("torch."), list(leaf.shape[1:])) for leaf in leaves
    ]
    return json.dumps({"leaves": dtypes_shapes, "structure": structure_text(structure, NEEDED_BY)})


def _rows(leaves: list[torch.Tensor]) -> Iterator[tuple[bytes, ...]]:
    """Yield, for each sample of a chunk, the bytes of each leaf."""
    arrays = [leaf.contiguous().view(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
    for rows in zip(*arrays, strict=True):
        yield tuple(row.tobytes() for row in rows)


def _serialize(example: Any, row: tuple[bytes, ...]) -> bytes:
    """The bytes of a message with the leaves of one sample.

    example: an empty message. Without `deterministic`, the order of its features would vary.
    """
    for number, value in enumerate(row):
        example.features.feature[str(number)].bytes_list.value.append(value)
    return example.SerializeToString(deterministic=True)
