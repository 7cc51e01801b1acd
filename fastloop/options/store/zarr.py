"""`store=zarr`: a Zarr group with a chunked array for each leaf of a sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, option
from fastloop.data.store_leaves import array_of, structure_text

LIBRARY = Library("zarr", "store=zarr", "pip install zarr")
STRUCTURE = "structure"
"""Name of the group's attribute that has the structure of a sample, as text."""
OPTION, ALTERNATIVE = "store=zarr", "store=torch_storage"
"""The store, and another one that holds dtypes which numpy lacks, for error messages."""


@dataclass(frozen=True)
class ZarrRows:
    """The Zarr arrays of the leaves, of which only the metadata has been read."""

    arrays: list[Any]
    """A zarr.Array (num_samples, …) for each leaf."""
    structure: Any
    """torch's TreeSpec of a sample."""


@option
class ZarrStore:
    """A Zarr group with an array for each leaf of a sample.

    The arrays have the names `0`, `1`, …, and a row for each sample. Each chunk is a file. zarr
    reads and decompresses whole chunks, so in random order most of a large chunk is read for
    nothing.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""
    chunk_rows: PositiveInt
    """Number of rows in a chunk."""
    compression: Literal["zstd"] | None
    """Compression of the chunks; None: no compression."""

    def check_installed(self) -> None:
        """Raise Unsupported if zarr is not installed."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write the samples to the arrays, chunk after chunk.

        Raises Unsupported if zarr is not installed, and for dtypes that numpy lacks.
        """
        zarr = LIBRARY.load()
        chunks = iter(chunks)
        first = next(chunks)
        leaves, structure = pytree.tree_flatten(first)
        group = zarr.create_group(str(folder))
        group.attrs[STRUCTURE] = structure_text(structure, OPTION)
        arrays = [
            group.create_array(
                str(number),
                shape=(num_samples, *row.shape[1:]),
                chunks=(min(self.chunk_rows, num_samples), *row.shape[1:]),
                dtype=row.dtype,
                compressors=zarr.codecs.ZstdCodec() if self.compression else None,
            )
            for number, row in enumerate(array_of(leaf, OPTION, ALTERNATIVE) for leaf in leaves)
        ]
        start = 0
        for chunk in chain([first], chunks):
            leaves = pytree.tree_leaves(chunk)
            for array, leaf in zip(arrays, leaves, strict=True):
                array[start : start + len(leaf)] = leaf.numpy()
            start += len(leaves[0])
        _end_threads()

    def open(self, folder: Path) -> ZarrRows:
        """The arrays of the group, with only their metadata read.

        Raises Unsupported if zarr is not installed, and BadData if store=zarr has not written the
        group.
        """
        zarr = LIBRARY.load()
        try:
            group = zarr.open_group(str(folder), mode="r")
            structure = pytree.treespec_loads(str(group.attrs[STRUCTURE]))
            arrays = [group[str(number)] for number in range(structure.num_leaves)]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{folder}: not written by store=zarr: {error}") from error
        finally:
            _end_threads()
        return ZarrRows(arrays, structure)


def _end_threads() -> None:
    """End zarr's threads, which would otherwise stay alive; zarr can start new ones."""
    LIBRARY.load("zarr.core.sync").cleanup_resources()
