"""`loader=tfrecord`: torch's DataLoader over a TFRecord file, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.batch_rows import BatchRows
from fastloop.examples import crc32c, example_class, masked
from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.torch_loader import as_fetched, torch_epochs
from fastloop.types import BadData, Epochs, Plan, Prepared, Tree, Unsupported, option

HEAD = struct.Struct("<QI")
"""Length of the record, and its masked checksum; after the record comes another checksum."""
TAIL = struct.Struct("<I")
NEEDED_BY = "loader=tfrecord"


@option
class TfRecord:
    """`__getitems__` reads the records of a batch by the index beside the file, in any order, and
    parses them by protobuf; one read a record, or one a batch that lies together.

    check_crc: compare both checksums of each record, as TensorFlow always does and the tfrecord
    package never does. A record's length is compared with the index in any case; without
    check_crc, nothing else tells a record with changed bytes from a good one.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    check_crc: bool

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from the file, which every worker opens for itself."""
        honours_only("tfrecord", plan, *self.honours)
        open_reader = partial(_Reader, self.store, prepared.folder, self.check_crc)
        open_reader().close()  # so that what is wrong with the file is told here, not by a worker
        rows = BatchRows(open_reader, prepared.num_samples)
        with closing(rows), torch_epochs(rows, plan, collate_fn=as_fetched) as epochs:
            yield epochs


class _Reader:
    """An open TFRecord file."""

    def __init__(self, store: Store, folder: Path, check_crc: bool) -> None:
        self._records: Any = store.open(folder)
        if not hasattr(self._records, "offsets"):
            raise Unsupported("rows are records: store@loader.store=tfrecord gives such")
        self._parse = example_class(NEEDED_BY).FromString
        self._crc32c = crc32c(NEEDED_BY) if check_crc else None
        self._file = self._records.path.open("rb", buffering=0)

    def read(self, indices: Sequence[int]) -> Tree:
        parsed = [self._parse(record).features.feature for record in self._each(indices)]
        leaves = []
        for number, (dtype, shape) in enumerate(self._records.leaves):
            name = str(number)
            rows = [features[name].bytes_list.value[0] for features in parsed]
            buffer = bytearray().join(rows)
            leaves.append(torch.frombuffer(buffer, dtype=dtype).view(len(rows), *shape))
        return pytree.tree_unflatten(leaves, self._records.structure)

    def close(self) -> None:
        self._file.close()

    def _each(self, indices: Sequence[int]) -> Iterator[memoryview]:
        chosen = np.asarray(indices)
        starts = self._records.offsets[chosen].tolist()
        stops = self._records.offsets[chosen + 1].tolist()
        if stops[:-1] == starts[1:]:
            first, whole = starts[0], self._bytes(starts[0], stops[-1])
            pairs = zip(starts, stops, strict=True)
            frames = (whole[start - first : stop - first] for start, stop in pairs)
        else:
            frames = map(self._bytes, starts, stops)
        for index, frame in zip(indices, frames, strict=True):
            yield self._record(index, frame)

    def _bytes(self, start: int, stop: int) -> memoryview:
        self._file.seek(start)
        found = memoryview(self._file.read(stop - start))
        if len(found) != stop - start:
            raise BadData(f"{self._records.path}: ends at byte {start + len(found)}")
        return found

    def _record(self, index: int, frame: memoryview) -> memoryview:
        """What is in the frame; raises BadData where that is not a whole record."""
        length, of_length = HEAD.unpack_from(frame)
        record = frame[HEAD.size : -TAIL.size]
        if length != len(record):
            raise BadData(f"{self._records.path}: record {index} is not where the index says")
        if self._crc32c is not None:
            (of_record,) = TAIL.unpack_from(frame, len(frame) - TAIL.size)
            found = masked(self._crc32c(frame[:8])), masked(self._crc32c(record))
            if found != (of_length, of_record):
                raise BadData(f"{self._records.path}: record {index} has another checksum")
        return record
