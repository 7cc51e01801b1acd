"""An open loader that can be closed and opened again: `ReopenableLoader`.

With cache=cold, the loader's files are evicted from the page cache while the loader is closed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from fastloop.core.types import Epochs


class ReopenableLoader:
    """An open loader that can be closed and opened again."""

    def __init__(self, stack: ExitStack, open_: Callable[[], AbstractContextManager[Epochs]]):
        self._stack = stack
        self._open = open_
        self.epochs = stack.enter_context(open_())
        """Returns the batches of an epoch of the open loader, by the epoch's number."""

    def reopen(self, between: Callable[[], None]) -> None:
        """Close the loader, call `between`, and open the loader again."""
        # `between` may evict files, which fails for mapped pages. So neither `epochs` nor a
        # reference cycle may still hold a mapping.
        del self.epochs
        self._stack.close()
        gc.collect()
        between()
        self.epochs = self._stack.enter_context(self._open())


@contextmanager
def open_reopenable(
    open_: Callable[[], AbstractContextManager[Epochs]],
) -> Iterator[ReopenableLoader]:
    """A context with an open loader, which is closed when the context ends.

    open_: function that opens the loader, and is called again by `reopen`.
    """
    with ExitStack() as stack:
        yield ReopenableLoader(stack, open_)
