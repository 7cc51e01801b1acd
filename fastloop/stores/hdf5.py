"""`store=hdf5`: one HDF5 file, a chunked dataset a leaf."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.optional import check_found, imported
from fastloop.rows import array_of, structure_text
from fastloop.types import BadData, Tree, Unsupported, option

NEEDS = "h5py", "store=hdf5", "pip install h5py"
FILE = "rows.h5"
STRUCTURE = "structure"
WHOSE, INSTEAD = "store=hdf5", "store=torch_storage"
CACHE_BYTES = 8 << 20
"""HDF5 2's own default for its cache of chunks."""
CHUNK_LIMIT = 1 << 32
"""Bytes of a chunk that HDF5 before 2 can't read."""


@option
class Hdf5:
    """Datasets `0`, `1`, … with the batch dimension first, cut into chunks of whole rows, and the
    tree that they are the leaves of as an attribute of the file.

    HDF5 reads and decompresses a chunk at once, so that most of a large one is read in vain where
    the order is random; experiment=hdf5_chunks measures it. Only of a chunk without compression
    that is larger than HDF5's cache it reads the rows alone.
    """

    root: str
    chunk_rows: PositiveInt
    compression: Literal["gzip", "lzf"] | None

    def check_installed(self) -> None:
        """Raise Unsupported without h5py."""
        check_found(*NEEDS)

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Append batch after batch, in memory bounded by one and by HDF5's cache of chunks.

        Raises Unsupported without h5py, for chunks that HDF5 can't hold, and for dtypes that numpy
        does not have.
        """
        h5py, chunks = imported(*NEEDS), iter(chunks)
        first = next(chunks)
        leaves, structure = pytree.tree_flatten(first)
        arrays = [array_of(leaf, WHOSE, INSTEAD) for leaf in leaves]
        cache = max(CACHE_BYTES, 2 * max(map(self._chunk_bytes, arrays)))
        with h5py.File(folder / FILE, "w", rdcc_nbytes=cache) as file:
            file.attrs[STRUCTURE] = structure_text(structure, WHOSE)
            datasets = [
                self._dataset(file, str(number), array, num_samples)
                for number, array in enumerate(arrays)
            ]
            done = 0
            for chunk in chain([first], chunks):
                leaves = pytree.tree_leaves(chunk)
                for dataset, leaf in zip(datasets, leaves, strict=True):
                    dataset[done : done + len(leaf)] = leaf.numpy()
                done += len(leaves[0])

    def open(self, folder: Path) -> Tree:
        """The tree of h5py datasets, not yet read, of one file that is open for reading.

        Raises Unsupported without h5py, and BadData for a file that is not such a one.
        """
        h5py, path = imported(*NEEDS), folder / FILE
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise BadData(f"{path}: not a whole HDF5 file: {error}") from error
        try:
            structure = pytree.treespec_loads(file.attrs[STRUCTURE])
            datasets = [file[str(number)] for number in range(structure.num_leaves)]
        except KeyError as error:
            file.close()
            raise BadData(f"{path}: not an HDF5 file of store=hdf5: {error}") from error
        return pytree.tree_unflatten(datasets, structure)

    def _dataset(self, file: Any, name: str, array: np.ndarray, num_samples: int) -> Any:
        return file.create_dataset(
            name,
            shape=(num_samples, *array.shape[1:]),
            dtype=array.dtype,
            chunks=(min(self.chunk_rows, num_samples), *array.shape[1:]),
            compression=self.compression,
            track_times=False,
        )

    def _chunk_bytes(self, array: np.ndarray) -> int:
        found = self.chunk_rows * array[:1].nbytes
        if found >= CHUNK_LIMIT:
            said = f"a chunk of {found / 2**30:.1f} GiB, and from 4 on HDF5 2 alone reads it"
            raise Unsupported(f"store.chunk_rows={self.chunk_rows}: {said}")
        return found
