"""Anonymous files: memory that a process hands over to another process.

An anonymous file is in no folder, so it takes no space in /dev/shm, which has 64 MiB in a container
by default. The kernel frees the file when the last process that uses it ends, even if that process
is killed. Except on macOS, all of the memory is allocated when the file is created, or the
creation fails. Otherwise, SIGBUS would end a process that writes to a page for which there is no
memory.
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
    """The descriptor of a new anonymous file of `nbytes` bytes.

    Raises MemoryError if the memory is not available.
    """
    # The kernel would not refuse a file that is too large, but kill processes to make room for it.
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
    """Bytes that are left in the machine or, if these are fewer, in this process's cgroups.

    On a system without MEMINFO, all bytes that this process may use.
    """
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return usable_memory_bytes()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    machine = kilobytes[0] << 10 if kilobytes else usable_memory_bytes()
    return min([machine, *memory_left()])


def _describe(nbytes: int, reason: str) -> str:
    """The message of the MemoryError for a file of `nbytes` bytes."""
    advice = "a smaller batch_size or prefetch_factor, or fewer num_workers, need less"
    return f"no shared memory of {nbytes:,} bytes for a batch ({reason}): {advice}"


def _allocate(file: int, nbytes: int) -> None:
    """Allocate all pages of the file, if the system can."""
    # macOS can only set the file's length; its pages are allocated when they are written to.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.truncate(file, nbytes)


def map_file(file: int) -> mmap.mmap:
    """Map a file into memory, which keeps the file alive, and close the descriptor."""
    try:
        return mmap.mmap(file, 0)
    finally:
        os.close(file)


def send_file(connection: Connection, file: int) -> None:
    """Hand the file over to the process at the other end; the descriptor stays open here."""
    send_handle(connection, file, None)


def receive_memory(connection: Connection) -> mmap.mmap:
    """Map the file that the process at the other end hands over into memory."""
    return map_file(recv_handle(connection))
