"""Detect batches with bytes that nothing has read yet: views of a mapped file, or lazy tensors.

The step of benchmark=traversal reads all bytes of such batches. Otherwise a loader that only maps
its file would seem fast.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from fastloop.core.trees import tree_leaves
from fastloop.core.types import Tree


class UnreadBatches:
    """Batches of an epoch; `found` becomes True if bytes of some batch may be unread in a file.

    All batches are examined: the first may lie in memory and all others in a mapped file.
    """

    def __init__(self, batches: Iterable[Tree], device: torch.device) -> None:
        self.found = False
        self._batches = batches
        self._looks = device.type == "cpu"
        """False on an accelerator: the copy to it reads all bytes."""

    def __iter__(self) -> Iterator[Tree]:
        mappings = _Mappings()
        for batch in self._batches:
            self.found = self.found or (self._looks and _may_be_unread(batch, mappings))
            yield batch


def may_be_unread(batch: Tree) -> bool:
    """True if bytes of the batch may never have been fetched.

    The bytes of a leaf may be unread if a mapped file backs it, or if it belongs to a subclass of
    Tensor, which may fetch them when it is used. On systems that do not list a process's mappings,
    the result is True for every batch.
    """
    return _may_be_unread(batch, _Mappings())


def _may_be_unread(batch: Tree, mappings: _Mappings) -> bool:
    """As `may_be_unread`, with mappings that were read for earlier batches."""
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if any(type(leaf) is not torch.Tensor for leaf in leaves):
        return True
    return any(mappings.is_of_file(leaf.data_ptr()) for leaf in leaves)


class MemoryMapping(NamedTuple):
    """A range of mapped addresses of a process."""

    start: int
    stop: int
    is_file: bool
    """True if the addresses are mapped to a file on a disk."""


def memory_mappings() -> list[MemoryMapping] | None:
    """All mapped addresses of this process, ascending; None if unknown."""
    try:
        text = Path("/proc/self/maps").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # Paths that begin like these have no file on a disk: they are shared memory of POSIX, of torch,
    # of memfd_create and of System V.
    in_memory = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")
    mappings = []
    # A path may hold characters at which splitlines would break it; its line ends are escaped.
    for line in filter(None, text.split("\n")):
        # proc_pid_maps(5): start-stop, permissions, offset, device, inode, and a path with blanks.
        row = line.split(maxsplit=5)
        start, stop = row[0].split("-")
        path = row[5] if len(row) == 6 else ""
        is_file = path.startswith("/") and not path.startswith(in_memory)
        mappings.append(MemoryMapping(int(start, 16), int(stop, 16), is_file))
    return mappings


class _Mappings:
    """The memory mappings of this process, read when they are needed.

    They are read again only for an address that no known mapping has, because reading the list
    takes milliseconds, longer than a batch.
    """

    def __init__(self) -> None:
        self._known: list[MemoryMapping] | None = []

    def is_of_file(self, address: int) -> bool:
        """True if the address is mapped to a file, or if the system does not list mappings."""
        is_of_file = self._find(address)
        if is_of_file is None:
            self._known = memory_mappings()
            is_of_file = self._find(address)
        return bool(is_of_file) if self._known is not None else True

    def _find(self, address: int) -> bool | None:
        """True if the address is mapped from a file; None if no known mapping has the address."""
        # If a mapping has the address, it is the last one that begins at or before it.
        known = self._known or []
        place = bisect.bisect_right(known, address, key=lambda mapping: mapping.start) - 1
        # A negative index would count from the end.
        if place < 0 or not known[place].start <= address < known[place].stop:
            return None
        return known[place].is_file
