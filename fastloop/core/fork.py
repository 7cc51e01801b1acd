"""Starting forks: the garbage of a process is freed by that process alone."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def inherit_no_garbage() -> Iterator[None]:
    """Context for starting a process: a fork never frees the garbage that its parent had.

    A process that was forked can't use CUDA if its parent does. If its garbage collector freed a
    tensor of the parent that is on the device, torch would abort it. Garbage of the parent is
    therefore moved out of the collector's sight, as the documentation of `gc.freeze` describes, and
    is collected again by the parent alone. Objects that the program itself had frozen are no longer
    frozen afterwards.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
