"""`store=ffcv`: one .beton file of FFCV."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastloop.optional import INSTALL_FFCV, check_found, contained, imported
from fastloop.types import BadData, Tree, Unsupported, option

NEEDED_BY = "store=ffcv", INSTALL_FFCV
FILE = "rows.beton"
PAGE_BYTES = 8 << 20
"""FFCV's own default; a sample has to fit in a page."""
PAGE_LIMIT = 1 << 32
HEAD = struct.Struct("<HHIQQ")
"""Version, number of fields, bytes of a page, number of samples, where the table of allocations
is."""
VERSION = 2
ALLOCATION_BYTES = 24
UNKNOWN = torch.float16, torch.bfloat16
"""To numba, which compiles what reads the arrays, and to numpy."""


@option
class Ffcv:
    """(array, int) samples as NDArrayField and IntField, `data` and `label`."""

    root: str

    def check_installed(self) -> None:
        """Raise Unsupported without FFCV."""
        check_found("ffcv", *NEEDED_BY)

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Append sample after sample, in this process.

        Raises Unsupported without FFCV, for samples other than (array, int64) pairs, and for dtypes
        that it does not know.
        """
        ffcv = imported("ffcv.writer", *NEEDED_BY)
        fields = imported("ffcv.fields", *NEEDED_BY)
        chunks = iter(chunks)
        data, labels = _pair(next(chunks))
        page = max(PAGE_BYTES, 1 << (data[0].nbytes - 1).bit_length())
        if page >= PAGE_LIMIT:
            raise Unsupported(f"store=ffcv: a sample of {data[0].nbytes} bytes; 2 GiB are too many")
        with contained():  # it warns of uint16, which torch has learnt since
            kinds = {
                "data": fields.NDArrayField(data.dtype, data.shape[1:]),
                "label": fields.IntField(),
            }
        writer = ffcv.DatasetWriter(str(folder / FILE), kinds, page_size=page)
        pairs = chain([(data, labels)], map(_pair, chunks))
        _fill(ffcv, writer, (row for pair in pairs for row in zip(*pair, strict=True)), num_samples)

    def open(self, folder: Path) -> Path:
        """The .beton file; raises BadData for another one, or where its end is missing."""
        path = folder / FILE
        try:
            with path.open("rb") as file:
                version, _, _, count, table = HEAD.unpack(file.read(HEAD.size))
            end = table + count * ALLOCATION_BYTES
            whole = version == VERSION and HEAD.size < table < end <= path.stat().st_size
        except (OSError, struct.error) as error:
            raise BadData(f"{path}: not a .beton file: {error}") from error
        if not whole:
            raise BadData(f"{path}: not a whole .beton file of version {VERSION}")
        return path


def _fill(ffcv: Any, writer: Any, samples: Iterator[tuple], num_samples: int) -> None:
    """What DatasetWriter.from_indexed_dataset does, in this process and in order.

    That wants the samples at random places, and waits for good for a worker that has failed.
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
    """Arrays of (data, label) rows."""
    if isinstance(chunk, tuple | list) and len(chunk) == 2 and all(map(torch.is_tensor, chunk)):
        data, labels = chunk
        if data.dtype in UNKNOWN:
            kind = str(data.dtype).removeprefix("torch.")
            raise Unsupported(f"store=ffcv holds no {kind}; store=torch_storage does")
        if data.ndim > 1 and labels.ndim == 1 and labels.dtype == torch.int64:
            return data.numpy(), labels.numpy()
    raise Unsupported("store=ffcv holds (array, int) samples; other trees do not fit its fields")
