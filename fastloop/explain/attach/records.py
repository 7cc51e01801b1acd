"""The records that a script's processes write: rows of ten integers, and facts as JSON.

A process writes <pid>-<start>.rows and <pid>-<start>.facts to the folder of the records.
"""

from __future__ import annotations

from enum import IntEnum

WIDTH = 10
"""Numbers of a row; the first is its Kind. Unused ones are 0, times are in nanoseconds."""
UNKNOWN = -1
END = -1
"""Batch number of the call of next() that ended the iteration."""
ROWS, FACTS = ".rows", ".facts"


class Kind(IntEnum):
    """Content of a row."""

    ITERATION = 1
    """iteration, loader, start, stop of iter(), pass over the same iterator, thread"""
    NEXT = 2
    """iteration, batch, start, stop, CPU time of the process at start and at stop, or UNKNOWN"""
    FETCH = 3
    """pass, batch, start, collate's start, stop, put's stop, and of a batch whose samples were
    timed: nanoseconds in the dataset, nanoseconds in its transform, CPU time (else UNKNOWN)"""
    SAMPLE = 4
    """pass, batch, number in the batch, start, stop"""
    TOTAL = 5
    """iteration, batches, start, stop, nanoseconds in next(): of batches without rows"""
