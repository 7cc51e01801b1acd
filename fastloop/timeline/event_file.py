"""Files of events: records of one size in a file that is mapped into memory.

An event is there as soon as it is added, without a system call, and stays there however its process
ends: a worker is killed while it waits.
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
"""Stage, start, batch, epoch, CPU time and stop of an event, each an int64. The stop is written
last: where it is zero there is no event, or one that was cut by a kill."""
LEAST_BYTES = math.lcm(RECORD.size, ALLOCATIONGRANULARITY)
MOST_BYTES = 16 * LEAST_BYTES
"""A file grows to twice its size, by so much at least and at most: most processes record little."""


def map_more(path: Path) -> mmap:
    """Empty records at the end of a file, which is made if it is not there.

    They have their place on the disk: OSError where it is full, and no signal at a later write.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        start = os.fstat(file).st_size
        size = min(max(start, LEAST_BYTES), MOST_BYTES) // LEAST_BYTES * LEAST_BYTES
        if os.write(file, bytes(size)) < size:
            os.ftruncate(file, start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return mmap(file, size, offset=start)
    finally:
        os.close(file)


def read_records(path: Path) -> Iterator[tuple[int, ...]]:
    """The records of a file that have been written to, in their order."""
    content = path.read_bytes()
    whole = content[: len(content) // RECORD.size * RECORD.size]
    return (record for record in RECORD.iter_unpack(whole) if record[-1])
