"""Epochs that are generators, and their end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from fastloop.types import Epochs, Tree

Batches = Generator[Tree, None, None]


@contextmanager
def closed_at_the_end(batches: Callable[[int], Batches]) -> Iterator[Epochs]:
    """Epochs whose generators are closed when the context is left, also those still held."""
    started: list[weakref.ref[Any]] = []

    def epochs(epoch: int) -> Batches:
        started[:] = [one for one in started if one() is not None]
        generator = batches(epoch)
        started.append(weakref.ref(generator))
        return generator

    try:
        yield epochs
    finally:
        for one in started:
            generator = one()
            if generator is not None:
                generator.close()
