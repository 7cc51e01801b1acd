"""`loader=tfrecord`: torch's DataLoader over a TFRecord file, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import BadData, Epochs, Tree, Unsupported, option
from fastloop.data.rows_of_open_file import reader_epochs
from fastloop.data.tfrecord_format import example_class, import_crc32c, mask_crc

HEAD = struct.Struct("<QI")
"""A record's header: its length and the masked checksum of the length."""
TAIL = struct.Struct("<I")
"""A record's trailer: the masked checksum of its bytes."""
NEEDED_BY = "loader=tfrecord"
"""The option that needs protobuf and crc32c, for the message if one is not installed."""


@option
class TfRecordLoader:
    """DataLoader over a TFRecord file with an index of offsets; protobuf parses the records.

    The records of a batch are read in any order, by one read for each record. If they are
    contiguous in the file, one read suffices for all of them.
    """

    store: Store
    """The store to read."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True
    check_crc: bool
    """True: both checksums of each record are verified, as TensorFlow always does. False: no
    checksum is verified, as in the tfrecord package, and changed bytes in a record go unnoticed.
    The length of a record is compared with the index in both cases."""

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """A context with the epochs; every worker opens the file itself."""
        open_reader = partial(_RecordReader, self.store, prepared.folder, self.check_crc)
        return reader_epochs(open_reader, prepared, plan)


class _RecordReader:
    """An open TFRecord file."""

    def __init__(self, store: Store, folder: Path, check_crc: bool) -> None:
        """Open the file of the store in a folder.

        Raises Unsupported if the store has no TFRecord file, or if a library is not installed.
        """
        self._records: Any = store.open(folder)
        if not hasattr(self._records, "offsets"):
            raise Unsupported(
                "loader=tfrecord reads TFRecord files only: use store@loader.store=tfrecord"
            )
        self._parse = example_class(NEEDED_BY).FromString
        self._crc32c = import_crc32c(NEEDED_BY) if check_crc else None
        self._file = self._records.path.open("rb", buffering=0)

    def read(self, indices: Sequence[int]) -> Tree:
        """The rows of these indices, in the order of the indices, as a tree of tensors.

        Raises BadData if the file is cut off, or if a record is damaged.
        """
        parsed = [self._parse(record).features.feature for record in self._read_records(indices)]
        leaves = []
        for number, (dtype, shape) in enumerate(self._records.leaves):
            name = str(number)
            rows = [features[name].bytes_list.value[0] for features in parsed]
            # torch.frombuffer warns if the memory can't be written to, so it gets a bytearray.
            buffer = bytearray().join(rows)
            leaves.append(torch.frombuffer(buffer, dtype=dtype).view(len(rows), *shape))
        return pytree.tree_unflatten(leaves, self._records.structure)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_records(self, indices: Sequence[int]) -> Iterator[memoryview]:
        """Yield the record of each index, without header and trailer."""
        numbers = np.asarray(indices)
        starts = self._records.offsets[numbers].tolist()
        stops = self._records.offsets[numbers + 1].tolist()
        # If the records are contiguous, as in sequential order, one read suffices for the batch.
        if stops[:-1] == starts[1:]:
            first = starts[0]
            whole = self._read_bytes(starts[0], stops[-1])
            pairs = zip(starts, stops, strict=True)
            frames = (whole[start - first : stop - first] for start, stop in pairs)
        else:
            frames = map(self._read_bytes, starts, stops)
        for index, frame in zip(indices, frames, strict=True):
            yield self._verify_record(index, frame)

    def _read_bytes(self, start: int, stop: int) -> memoryview:
        """The bytes of the file from `start` to `stop`; raises BadData if the file ends before."""
        self._file.seek(start)
        data = memoryview(self._file.read(stop - start))
        if len(data) != stop - start:
            raise BadData(f"{self._records.path}: ends at byte {start + len(data)}")
        return data

    def _verify_record(self, index: int, frame: memoryview) -> memoryview:
        """The record in a frame, which is a record with header and trailer.

        index: the record's index, for the message. Raises BadData if the record is damaged.
        """
        length, length_crc = HEAD.unpack_from(frame)
        record = frame[HEAD.size : -TAIL.size]
        # If the offsets belong to another file, they lead into the middle of records.
        if length != len(record):
            raise BadData(f"{self._records.path}: record {index} is not where the index says")
        if self._crc32c is not None:
            (record_crc,) = TAIL.unpack_from(frame, len(frame) - TAIL.size)
            crcs = mask_crc(self._crc32c(frame[:8])), mask_crc(self._crc32c(record))
            if crcs != (length_crc, record_crc):
                raise BadData(f"{self._records.path}: record {index} does not match its checksum")
        return record
