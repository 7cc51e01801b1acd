"""The numbers of the batch that a thread makes, and of the batch that it has received last.

Loaders and hooks set these numbers. The event log and the probes, which record the work of loaders,
read them.
"""

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
    """The numbers of the calling thread, which may be read or assigned to.

    All calls in a thread return the same object. A forked process begins with the numbers of its
    parent.
    """
    try:
        return _threads.batch
    except AttributeError:
        _threads.batch = CurrentBatch()
        return _threads.batch
