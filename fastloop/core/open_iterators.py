"""OpenIterators: closes the iterators of epochs that have not ended when their loader is closed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastloop.core.types import Batches, Epochs

T = TypeVar("T")


@dataclass
class OpenIterators:
    """The iterators that were started here and that are still referenced elsewhere."""

    # The references are weak, because long runs must not keep an iterator for each epoch. An
    # iterator without other references closes when Python frees it.
    _references: list[weakref.ref[Any]] = field(default_factory=list, init=False)

    def start(self, iterable: Iterable[T]) -> Iterator[T]:
        """Note the iterable's own iterator, and return it: a timed window calls nothing else."""
        iterator = iter(iterable)
        self._references = [
            each for each in self._references if each() is not None and each() is not iterator
        ]
        # A list's iterator allows no weak reference, and has nothing to close.
        with suppress(TypeError):
            self._references.append(weakref.ref(iterator))
        return iterator

    def close(self, loader: object = None) -> None:
        """End the generators, and the workers of the iterators of DataLoaders.

        loader: a DataLoader, which itself refers to the iterator with its persistent workers.
        """
        # torch has no public way to end persistent workers, or those of an iterator that is still
        # referenced. Without workers, an iterator has neither method.
        kept = getattr(loader, "_iterator", None)
        for iterator in (kept, *(each() for each in self._references)):
            for name in ("_shutdown_workers", "close"):
                getattr(iterator, name, lambda: None)()


@contextmanager
def close_on_exit(batches: Callable[[int], Batches]) -> Iterator[Epochs]:
    """Epochs as generators, which are closed on leaving the context, even if still referenced."""
    started = OpenIterators()
    try:
        yield lambda epoch: started.start(batches(epoch))
    finally:
        started.close()
