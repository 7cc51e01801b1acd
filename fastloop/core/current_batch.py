"""CurrentBatch, which tells for each thread on which batch of a loader it works.

A thread that makes a batch sets the batch's number before it reads the samples. The event log and
the probes, which record the work of loaders, note this number with each piece of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import local

UNKNOWN = -1
"""The value of a number that is not known or does not exist."""


@dataclass(slots=True)
class CurrentBatch:
    """The batch that a thread makes, and the batch that it has received last from a DataLoader."""

    number: int = UNKNOWN
    """The number, from 0 on, of the batch that the thread makes, in its pass over the loader."""
    pass_number: int = UNKNOWN
    """The number of that pass."""
    received: int = UNKNOWN
    """The number of the batch that the thread has received last from a DataLoader."""


_threads = local()


def current_batch() -> CurrentBatch:
    """The CurrentBatch of the calling thread, which the caller may change.

    All calls in a thread return the same object. A forked process begins with the numbers of its
    parent.
    """
    try:
        return _threads.batch
    except AttributeError:
        _threads.batch = CurrentBatch()
        return _threads.batch
