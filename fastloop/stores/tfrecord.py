"""`store=tfrecord`: one TFRecord file of tf.train.Example records, written without TensorFlow."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.examples import check_installed, crc32c, example_class, masked
from fastloop.rows import structure_text
from fastloop.types import BadData, Tree, option

NEEDED_BY = "store=tfrecord"
CRC = struct.Struct("<I")
RECORDS, INDEX, LAYOUT = "rows.tfrecord", "offsets.npy", "layout.json"


@dataclass(frozen=True)
class Records:
    """A TFRecord file, not yet read: where each record lies and what is in it."""

    path: Path
    offsets: np.ndarray
    """int64 (num_samples + 1): where each record begins, and where the last one ends."""
    leaves: list[tuple[torch.dtype, list[int]]]
    """dtype and shape of a row of each leaf; its bytes are the feature of the leaf's number."""
    structure: Any
    """The torch TreeSpec that they are the leaves of."""


@option
class TfRecord:
    """A record a sample, a feature a leaf: `0`, `1`, … as bytes_list of one value, the row's bytes.

    TFRecord knows no random access: an index of offsets is written beside it, so that any order
    can be read. Both checksums of a record are written, as TensorFlow wants them.
    """

    root: str

    def check_installed(self) -> None:
        """Raise Unsupported without crc32c."""
        check_installed(NEEDED_BY)

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Append record after record; raises Unsupported without crc32c and protobuf."""
        example, checksum = example_class(NEEDED_BY), crc32c(NEEDED_BY)
        offsets, done = np.zeros(num_samples + 1, np.int64), 0
        with (folder / RECORDS).open("wb") as file:
            for chunk in chunks:
                leaves, structure = pytree.tree_flatten(chunk)
                if not done:
                    (folder / LAYOUT).write_text(_layout(leaves, structure))
                for row in _rows(leaves):
                    record = _serialized(example(), row)
                    length = struct.pack("<Q", len(record))
                    crcs = [CRC.pack(masked(checksum(part))) for part in (length, record)]
                    file.writelines([length, crcs[0], record, crcs[1]])
                    done += 1
                    offsets[done] = offsets[done - 1] + len(record) + 16
        np.save(folder / INDEX, offsets)

    def open(self, folder: Path) -> Records:
        """Where the rows are; raises BadData where the file is not as long as its index says."""
        path = folder / RECORDS
        try:
            layout = json.loads((folder / LAYOUT).read_text())
            offsets = np.load(folder / INDEX, allow_pickle=False)
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            raise BadData(f"{folder}: not a TFRecord store: {error}") from error
        if size != offsets[-1]:
            raise BadData(f"{path}: {size} bytes, and its index is of {offsets[-1]}")
        leaves = [(getattr(torch, name), shape) for name, shape in layout["leaves"]]
        return Records(path, offsets, leaves, pytree.treespec_loads(layout["structure"]))


def _layout(leaves: list[torch.Tensor], structure: Any) -> str:
    """The leaves' dtypes and shapes and their tree, as JSON."""
    shown = [(str(leaf.dtype).removeprefix("torch."), list(leaf.shape[1:])) for leaf in leaves]
    return json.dumps({"leaves": shown, "structure": structure_text(structure, NEEDED_BY)})


def _rows(leaves: list[torch.Tensor]) -> Iterator[tuple[bytes, ...]]:
    """The bytes of each leaf, sample by sample."""
    arrays = [leaf.contiguous().view(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
    for rows in zip(*arrays, strict=True):
        yield tuple(row.tobytes() for row in rows)


def _serialized(example: Any, row: tuple[bytes, ...]) -> bytes:
    """The row in a new message; a map's order would change from process to process."""
    for number, value in enumerate(row):
        example.features.feature[str(number)].bytes_list.value.append(value)
    return example.SerializeToString(deterministic=True)
