"""`store=mosaic_streaming`: shards of MosaicML Streaming (MDS), a column for each leaf."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.store_leaves import array_of, structure_text

LIBRARY = Library("streaming", "store=mosaic_streaming", "pip install mosaicml-streaming")
INDEX, LAYOUT = "index.json", "layout.json"
"""Names of the index of the shards, which MDS writes, and of fastloop's file with the structure of
a sample."""
OPTION, ALTERNATIVE = "store=mosaic_streaming", "store=torch_storage"
"""Names, in error messages, of this option and of one that holds the dtypes that MDS lacks."""
MIB = 2**20
"""Bytes of a MiB."""
NUMBERS = (
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
)
"""The dtypes of MDS; it has neither bool nor complex numbers."""


@dataclass(frozen=True)
class MosaicShards:
    """The folder of the shards, which are not yet read, and the structure of a sample."""

    folder: Path
    structure: Any
    """torch's TreeSpec of a sample."""

    @property
    def columns(self) -> list[str]:
        """The name of each leaf's column, in the order of the leaves."""
        return [_column(number) for number in range(self.structure.num_leaves)]


@option
class MosaicStreamingStore:
    """Shards by `streaming.MDSWriter`; a leaf is a column of arrays of one shape, or of numbers."""

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""
    shard_mib: PositiveFloat
    """Maximum size of a shard in MiB, the writer's `size_limit`. Workers divide samples, not
    shards, so the size does not limit the number of workers."""

    def check_installed(self) -> None:
        """Raise Unsupported without MosaicML Streaming."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:  # noqa: ARG002
        """Write the samples one after another, and the structure of a sample.

        chunks: batches of successive samples. num_samples: not used. Raises Unsupported without
        MosaicML Streaming, for a dtype that MDS lacks, and for a structure that has no text.
        """
        streaming = LIBRARY.load()
        writer = None
        for chunk in chunks:
            leaves, structure = pytree.tree_flatten(chunk)
            arrays = [array_of(leaf, OPTION, ALTERNATIVE) for leaf in leaves]
            if writer is None:
                text = structure_text(structure, OPTION)
                writer = streaming.MDSWriter(
                    columns={
                        _column(number): _encoding(leaf) for number, leaf in enumerate(leaves)
                    },
                    out=str(folder),
                    size_limit=round(self.shard_mib * MIB),
                )
                # The writer refuses a folder that is not empty, so this file is written after the
                # writer is made.
                (folder / LAYOUT).write_text(json.dumps({"structure": text}))
            for row in zip(*arrays, strict=True):
                writer.write({_column(number): leaf for number, leaf in enumerate(row)})
        if writer is not None:
            writer.finish()

    def open(self, folder: Path) -> MosaicShards:
        """The shards of the folder.

        Raises BadData if the index or the structure is missing, if the columns do not fit the
        structure, or if a column may hold pickles.
        """
        try:
            structure = json.loads((folder / LAYOUT).read_text())["structure"]
            shards = MosaicShards(folder, pytree.treespec_loads(structure))
            for shard in json.loads((folder / INDEX).read_text())["shards"]:
                names, encodings = shard["column_names"], shard["column_encodings"]
                if sorted(names) != sorted(shards.columns) or not all(map(_is_safe, encodings)):
                    raise ValueError(f"columns are {dict(zip(names, encodings, strict=False))}")
            return shards
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{folder}: not written by store=mosaic_streaming: {error}") from error


def _column(number: int) -> str:
    """The name of the column of this leaf."""
    return f"leaf_{number}"


def _encoding(leaf: torch.Tensor) -> str:
    """MDS's name of the encoding of a row of the leaf; raises Unsupported if it has none."""
    kind = str(leaf.dtype).removeprefix("torch.")
    if leaf.dtype not in NUMBERS:
        raise Unsupported(f"{OPTION} can't hold {kind}; {ALTERNATIVE} can")
    shape = ",".join(map(str, leaf.shape[1:]))
    return f"ndarray:{kind}:{shape}" if shape else kind


def _is_safe(encoding: str) -> bool:
    """True for numbers and arrays of numbers; other encodings may be pickles."""
    kinds = [str(dtype).removeprefix("torch.") for dtype in NUMBERS]
    return encoding in kinds or encoding.startswith("ndarray:")
