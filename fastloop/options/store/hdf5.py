"""`store=hdf5`: one HDF5 file with a chunked dataset per leaf."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.store_leaves import array_of, structure_text

LIBRARY = Library("h5py", "store=hdf5", "pip install h5py")
FILE = "rows.h5"
"""Name of the file in the store's folder."""
STRUCTURE = "structure"
"""Name of the file's attribute with the structure of the tree."""
OPTION, ALTERNATIVE = "store=hdf5", "store=torch_storage"
"""Names of this option, and of one that holds more dtypes, for messages."""
CACHE_BYTES = 8 << 20
"""The default size of the chunk cache in HDF5 2."""
CHUNK_LIMIT = 1 << 32
"""Chunks of this many bytes or more can't be read by HDF5 before 2."""


@option
class Hdf5Store:
    """An HDF5 file with one chunked dataset per leaf, `0`, `1`, …, with the batch dimension first.

    The tree's structure is an attribute of the file. HDF5 reads and decompresses whole chunks, so
    in random order most of a large chunk is read for nothing (see experiment=hdf5_chunks). It reads
    single rows only from uncompressed chunks that are larger than its cache.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""
    chunk_rows: PositiveInt
    """Number of rows in a chunk."""
    compression: Literal["gzip", "lzf"] | None
    """Compression of the chunks; None: no compression."""

    def check_installed(self) -> None:
        """Raise Unsupported without h5py."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Append chunk after chunk, in memory bounded by one chunk and HDF5's chunk cache.

        Raises Unsupported without h5py, for HDF5 chunks that are too large, and for dtypes that
        numpy does not have.
        """
        h5py = LIBRARY.load()
        chunks = iter(chunks)
        first = next(chunks)
        leaves, structure = pytree.tree_flatten(first)
        arrays = [array_of(leaf, OPTION, ALTERNATIVE) for leaf in leaves]
        # If the cache can't hold a chunk, HDF5 compresses the chunk at every write, and reads it
        # back for the next one. Two chunks have to fit, because a write of rows may end one chunk
        # and begin another.
        cache = max(CACHE_BYTES, 2 * max(map(self._chunk_bytes, arrays)))
        with h5py.File(folder / FILE, "w", rdcc_nbytes=cache) as file:
            file.attrs[STRUCTURE] = structure_text(structure, OPTION)
            datasets = [
                self._dataset(file, str(number), array, num_samples)
                for number, array in enumerate(arrays)
            ]
            start = 0
            for chunk in chain([first], chunks):
                leaves = pytree.tree_leaves(chunk)
                for dataset, leaf in zip(datasets, leaves, strict=True):
                    dataset[start : start + len(leaf)] = leaf.numpy()
                start += len(leaves[0])

    def open(self, folder: Path) -> Tree:
        """The tree of h5py datasets of the opened file; no row has been read.

        Raises Unsupported without h5py, and BadData for a file that this store did not write.
        """
        h5py = LIBRARY.load()
        path = folder / FILE
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise BadData(f"{path}: not a complete HDF5 file: {error}") from error
        try:
            structure = pytree.treespec_loads(file.attrs[STRUCTURE])
            datasets = [file[str(number)] for number in range(structure.num_leaves)]
        except KeyError as error:
            file.close()
            raise BadData(f"{path}: not written by store=hdf5: {error}") from error
        return pytree.tree_unflatten(datasets, structure)

    def _dataset(self, file: Any, name: str, array: np.ndarray, num_samples: int) -> Any:
        """Create the file's dataset of a leaf. array: the leaf in the first chunk of samples."""
        # By default HDF5 also stores the time of writing, and files of equal samples would differ.
        return file.create_dataset(
            name,
            shape=(num_samples, *array.shape[1:]),
            dtype=array.dtype,
            chunks=(min(self.chunk_rows, num_samples), *array.shape[1:]),
            compression=self.compression,
            track_times=False,
        )

    def _chunk_bytes(self, array: np.ndarray) -> int:
        """Bytes of a chunk of the array; raises Unsupported for CHUNK_LIMIT or more."""
        nbytes = self.chunk_rows * array[:1].nbytes
        if nbytes >= CHUNK_LIMIT:
            reason = f"a chunk of {nbytes / 2**30:.1f} GiB; HDF5 before 2 reads less than 4 GiB"
            raise Unsupported(f"store.chunk_rows={self.chunk_rows}: {reason}")
        return nbytes
