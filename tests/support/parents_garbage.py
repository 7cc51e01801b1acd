"""Garbage that only the process that has made it may free, as a tensor on a GPU."""

from __future__ import annotations

import os


class Owned:
    """An object in a cycle, so that only the garbage collector frees it."""

    def __init__(self, freed_in: list[int]) -> None:
        self.itself, self.maker, self.freed_in = self, os.getpid(), freed_in

    def __del__(self) -> None:
        if os.getpid() != self.maker:
            os.abort()
        self.freed_in.append(os.getpid())


def make_garbage() -> list[int]:
    """Leave such an object behind; the list gets the process's id once it is freed."""
    freed_in: list[int] = []
    Owned(freed_in)
    return freed_in
