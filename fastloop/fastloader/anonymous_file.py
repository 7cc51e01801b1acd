"""Anonymous files: memory that a process hands over to another process.

An anonymous file is in no folder. So it takes no space in /dev/shm, which has 64 MiB in a container
by default. The kernel frees it when the last process that uses it ends, however that process ends.
All of the memory is allocated at once, or the call fails: a page that can't be allocated when it is
written to would end the process by SIGBUS.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from tempfile import TemporaryFile

from fastloop.core.cgroup import memory_left, usable_memory_bytes

MEMINFO = Path("/proc/meminfo")
"""Linux's file with the memory that the machine has left; other systems lack it."""


def create_file(nbytes: int) -> int:
    """The descriptor of an anonymous file of `nbytes`; raises MemoryError if too few are left."""
    # The kernel would not refuse too large a file, but kill processes to make room for it.
    if nbytes > (left := _available_bytes()):
        raise MemoryError(_describe(nbytes, f"{left:,} bytes are available"))
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fastloop-batches", os.MFD_CLOEXEC)
    else:
        # macOS has no memfd_create. An open temporary file that has been removed takes its place.
        with TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        _allocate(file, nbytes)
    except OSError as error:
        os.close(file)
        raise MemoryError(_describe(nbytes, str(error.strerror))) from error
    return file


def _available_bytes() -> int:
    """Memory that the machine and this process's cgroups have left."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return usable_memory_bytes()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    machine = kilobytes[0] << 10 if kilobytes else usable_memory_bytes()
    return min([machine, *memory_left()])


def _describe(nbytes: int, reason: str) -> str:
    advice = "a smaller batch_size or prefetch_factor, or fewer num_workers, need less"
    return f"no shared memory of {nbytes:,} bytes for a batch ({reason}): {advice}"


def _allocate(file: int, nbytes: int) -> None:
    # macOS can only set the file's length; its pages are allocated when they are written to.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.truncate(file, nbytes)


def map_file(file: int) -> mmap.mmap:
    """The file's memory, which keeps the file alive; the descriptor is closed."""
    try:
        return mmap.mmap(file, 0)
    finally:
        os.close(file)


def send_file(connection: Connection, file: int) -> None:
    """Hand the file over to the process at the other end; the descriptor stays open here."""
    send_handle(connection, file, None)


def receive_memory(connection: Connection) -> mmap.mmap:
    """The memory of the file that was handed over."""
    return map_file(recv_handle(connection))
