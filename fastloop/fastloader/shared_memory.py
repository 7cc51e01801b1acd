"""Memory that a process shares with its parent: anonymous files, which are in no folder.

So it is not taken from /dev/shm, of which a container has 64 MiB, and goes with its last user,
however that one ends. All of it is allocated at once, if there is as much: a page that can't be
allocated when it is written to would end the process by SIGBUS.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import torch

from fastloop.core.cgroup import CGROUPS, MEMBERSHIP, memory_left, usable_memory_bytes

MEMINFO = Path("/proc/meminfo")
ALIGNMENT = 64
"""Bytes of a cache line, and a multiple of the size of any type of a tensor."""


class Place(NamedTuple):
    """The place of a tensor in memory."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides, in elements."""


def create_file(nbytes: int) -> int:
    """The descriptor of an anonymous file of so many bytes; raises MemoryError for too many."""
    # The kernel would not refuse the memory, but kill processes to make room for it.
    if nbytes > (left := _available_bytes()):
        raise MemoryError(_describe(nbytes, f"{left:,} bytes are available"))
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("fastloop-batches", os.MFD_CLOEXEC)
    else:
        # macOS has no memfd_create: a file that has lost its name.
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
    return min([machine, *memory_left(CGROUPS, MEMBERSHIP)])


def _describe(nbytes: int, reason: str) -> str:
    advice = "a smaller batch_size or prefetch_factor, or fewer num_workers, need less"
    return f"no shared memory of {nbytes:,} bytes for a batch ({reason}): {advice}"


def _allocate(file: int, nbytes: int) -> None:
    # A truncated file has no pages yet, which is all that macOS offers.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, nbytes)
    else:
        os.truncate(file, nbytes)


def map_file(file: int) -> mmap.mmap:
    """The file's memory, which keeps the file; the descriptor is closed."""
    try:
        return mmap.mmap(file, 0)
    finally:
        os.close(file)


def send_file(connection: Connection, file: int) -> None:
    """Hand the file over to the process at the other end; it stays open here."""
    send_handle(connection, file, None)


def receive_memory(connection: Connection) -> mmap.mmap:
    """The memory of the file that was handed over."""
    return map_file(recv_handle(connection))


def tensor_at(buffer: mmap.mmap | memoryview, place: Place) -> torch.Tensor:
    """The tensor at a place of the buffer, which it keeps alive. Its storage has its own bytes
    alone.
    """
    numel = torch.Size(place.shape).numel()
    if not numel:
        return torch.empty(place.shape, dtype=place.dtype, device="cpu")
    count = numel * place.dtype.itemsize
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=count, offset=place.offset)
    return flat.view(place.dtype).as_strided(place.shape, place.strides)


def align(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
