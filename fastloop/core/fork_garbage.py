"""Leave garbage to the parent of a fork: the fork never frees objects that it has inherited."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_starting: list[bool] = []
"""An item for each process that is being started: true if the collector was enabled before."""


@contextmanager
def leave_garbage_to_parent() -> Iterator[None]:
    """A context in which to start a process: a fork never frees the garbage that its parent had.

    A forked process can't use CUDA if its parent does. If the garbage collector of the fork freed a
    tensor of the parent that is on the device, torch would abort the fork. So the fork hides all
    inherited objects from the collector, as the documentation of `gc.freeze` describes. The parent
    collects its garbage as before, and the objects that it has frozen itself stay frozen.
    """
    # The collector must not run in the fork before the objects are frozen there.
    _starting.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _starting.pop():
            gc.enable()


def _freeze_inherited() -> None:
    """Runs in each fork: move all objects out of the collector's sight, and enable it again."""
    if not _starting:
        return
    gc.freeze()
    if any(_starting):
        gc.enable()
    _starting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_freeze_inherited)
