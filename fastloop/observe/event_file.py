"""Files of events: records of one size in a file that is mapped into memory.

An event is in the file as soon as it is added, without a system call, and stays there however its
process ends. Workers often end by a signal, while they wait for work.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from mmap import ALLOCATIONGRANULARITY, mmap
from pathlib import Path
from struct import Struct

RECORD = Struct("6q")
"""Part, start, batch, epoch, CPU time and stop of an event, each an int64. The stop is written
last: a record with a stop of zero holds no event, or one that a kill has cut off."""
# A part of a file can be mapped only from a multiple of the granularity, and no record may lie in
# two parts: each part has a multiple of both sizes.
LEAST_BYTES = math.lcm(RECORD.size, ALLOCATIONGRANULARITY)
MOST_BYTES = 16 * LEAST_BYTES
"""A file doubles when it is full, by LEAST_BYTES to MOST_BYTES: most processes record little."""


def map_more(path: Path) -> mmap:
    """Empty records at the end of a file, mapped into memory. The file is made if it is missing.

    Raises OSError if the disk is full.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        start = os.fstat(file).st_size
        size = min(max(start, LEAST_BYTES), MOST_BYTES) // LEAST_BYTES * LEAST_BYTES
        # The zeros are written, as a file that is only made longer takes its blocks when its pages
        # are written to: on a full disk that is SIGBUS, which no code here could catch.
        if os.write(file, bytes(size)) < size:
            # A part that is too short would leave later parts at places that can't be mapped.
            os.ftruncate(file, start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return mmap(file, size, offset=start)
    finally:
        os.close(file)


def read_records(path: Path) -> Iterator[tuple[int, ...]]:
    """The finished records of a file, in their order."""
    content = path.read_bytes()
    # Another process may be in the middle of making the file longer.
    whole = content[: len(content) // RECORD.size * RECORD.size]
    return (record for record in RECORD.iter_unpack(whole) if record[-1])
