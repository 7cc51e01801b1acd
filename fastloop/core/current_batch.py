"""The numbers of the batch that a thread makes, and of the batch that it has received last. Loaders
and hooks set these numbers here, and the recorders of their work read them."""

from __future__ import annotations

from dataclasses import dataclass
from threading import local

UNKNOWN = -1
"""The value of a number that is not known or does not exist."""


@dataclass(slots=True)
class CurrentBatch:
    """The numbers of the batch that a thread makes, and of the batch that it has received last."""

    number: int = UNKNOWN
    """The number of the batch in its pass, from 0 on."""
    pass_number: int = UNKNOWN
    """The number of the pass over a loader for which the batch is made."""
    received: int = UNKNOWN
    """The number of the batch that this thread has received last from a DataLoader."""


_threads = local()


def current_batch() -> CurrentBatch:
    """The batch of the calling thread, to be read or assigned to.

    A thread keeps its object, and a forked process begins with the numbers of its parent.
    """
    try:
        return _threads.batch
    except AttributeError:
        _threads.batch = CurrentBatch()
        return _threads.batch
