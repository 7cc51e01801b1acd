"""Close the iterators of epochs that have not ended when their loader is closed."""

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
    """The iterators that `start` has returned and that are still referenced elsewhere."""

    # The references are weak, because long runs must not keep an iterator for each epoch. An
    # iterator without other references is closed when Python frees it.
    _references: list[weakref.ref[Any]] = field(default_factory=list, init=False)

    def start(self, iterable: Iterable[T]) -> Iterator[T]:
        """Return the iterable's own iterator, and note it for `close`.

        A timed window thus calls no code but that of the iterator.
        """
        iterator = iter(iterable)
        self._references = [
            each for each in self._references if each() is not None and each() is not iterator
        ]
        # A list's iterator allows no weak reference, and has nothing to close.
        with suppress(TypeError):
            self._references.append(weakref.ref(iterator))
        return iterator

    def close(self, loader: object = None) -> None:
        """Close the noted generators, and end the workers of the noted iterators of DataLoaders.

        loader: a DataLoader that keeps an iterator with persistent workers, which is closed too;
        None: only the noted iterators are closed.
        """
        # torch has no public way to end persistent workers, or the workers of an iterator that is
        # still referenced. A DataLoader's iterator without workers has neither of these methods.
        kept = getattr(loader, "_iterator", None)
        for iterator in (kept, *(each() for each in self._references)):
            for name in ("_shutdown_workers", "close"):
                getattr(iterator, name, lambda: None)()


@contextmanager
def close_on_exit(batches: Callable[[int], Batches]) -> Iterator[Epochs]:
    """Epochs from these generators, which are closed when the context ends, even if referenced.

    batches: function from the number of an epoch to a generator of its batches.
    """
    started = OpenIterators()
    try:
        yield lambda epoch: started.start(batches(epoch))
    finally:
        started.close()
