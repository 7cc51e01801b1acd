"""`store=ffcv`: one .beton file, the format of FFCV."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.core.optional_libraries import INSTALL_FFCV, Library, isolate_import
from fastloop.core.types import BadData, Tree, Unsupported, option

LIBRARY = Library("ffcv", "store=ffcv", INSTALL_FFCV)
FILE = "rows.beton"
PAGE_BYTES = 8 << 20
"""FFCV's default size of a page; a sample has to fit into a page."""
PAGE_LIMIT = 1 << 32
"""The header has 32 bits for the size of a page."""
HEAD = struct.Struct("<HHIQQ")
"""Version, number of fields, page size, number of samples, offset of the allocation table."""
VERSION = 2
"""The version of the format that the store's files have."""
ALLOCATION_BYTES = 24
"""Size of a row of the allocation table."""
UNSUPPORTED_DTYPES = torch.float16, torch.bfloat16
"""Dtypes that the store refuses. float16 is unknown to numba, which compiles the code that reads
the arrays, and bfloat16 is unknown to numpy."""


@option
class FfcvStore:
    """A .beton file of (array, int) samples: an NDArrayField `data` and an IntField `label`."""

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def check_installed(self) -> None:
        """Raise Unsupported without FFCV."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write the file sample by sample, in this process.

        Raises Unsupported without FFCV, for samples other than (array, int64) pairs, and for dtypes
        that FFCV does not support.
        """
        ffcv = LIBRARY.load("ffcv.writer")
        fields = LIBRARY.load("ffcv.fields")
        chunks = iter(chunks)
        data, labels = _pair(next(chunks))
        # FFCV's pages are powers of two.
        page = max(PAGE_BYTES, 1 << (data[0].nbytes - 1).bit_length())
        if page >= PAGE_LIMIT:
            size = f"a sample of {data[0].nbytes} bytes"
            raise Unsupported(f"store=ffcv: {size}; FFCV takes at most 2 GiB")
        # FFCV warns about uint16, although torch supports this dtype.
        with isolate_import():
            field_types = {
                "data": fields.NDArrayField(data.dtype, data.shape[1:]),
                "label": fields.IntField(),
            }
        writer = ffcv.DatasetWriter(str(folder / FILE), field_types, page_size=page)
        pairs = chain([(data, labels)], map(_pair, chunks))
        _fill(ffcv, writer, (row for pair in pairs for row in zip(*pair, strict=True)), num_samples)

    def open(self, folder: Path) -> Path:
        """The path of the .beton file; raises BadData if it is of another kind, or truncated."""
        path = folder / FILE
        try:
            with path.open("rb") as file:
                version, _, _, count, table = HEAD.unpack(file.read(HEAD.size))
            end = table + count * ALLOCATION_BYTES
            # A complete file has its allocation table after the header, and ends with it or
            # later.
            whole = version == VERSION and HEAD.size < table < end <= path.stat().st_size
        except (OSError, struct.error) as error:
            raise BadData(f"{path}: not a .beton file: {error}") from error
        if not whole:
            raise BadData(f"{path}: not a complete .beton file of version {VERSION}")
        return path


def _fill(ffcv: Any, writer: Any, samples: Iterator[tuple], num_samples: int) -> None:
    """Write the samples as DatasetWriter.from_indexed_dataset does, but in this process, in order.

    FFCV's own method needs random access to the samples and hangs if one of its workers fails.
    """
    writer.num_samples = num_samples
    writer.prepare()
    try:
        metadata = np.zeros(num_samples, writer.metadata_type)
        pages = ffcv.MemoryAllocator(writer.fname, writer.data_region_start, writer.page_size)
        names = writer.metadata_type.names
        with pages:
            for index, sample in enumerate(samples):
                ffcv.handle_sample(sample, index, names, metadata, pages, writer.fields)
        writer.metadata_sm.buf[: metadata.nbytes] = metadata.tobytes()
        writer.finalize(pages.allocations)
    finally:
        writer.metadata_sm.close()
        writer.metadata_sm.unlink()


def _pair(chunk: Tree) -> tuple[np.ndarray, np.ndarray]:
    """(data, label) arrays of the chunk; raises Unsupported for other samples."""
    if isinstance(chunk, tuple | list) and len(chunk) == 2 and all(map(torch.is_tensor, chunk)):
        data, labels = chunk
        if data.dtype in UNSUPPORTED_DTYPES:
            kind = str(data.dtype).removeprefix("torch.")
            raise Unsupported(f"store=ffcv can't hold {kind}; store=torch_storage can")
        if data.ndim > 1 and labels.ndim == 1 and labels.dtype == torch.int64:
            return data.numpy(), labels.numpy()
    raise Unsupported("store=ffcv takes (array, int) samples only")
