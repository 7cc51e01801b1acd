"""Detection of a loader's work outside of the epochs that it was asked for: no window contains
it."""

from __future__ import annotations

import contextlib

import psutil

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.spans import now_ns, other_threads_cpu_ns, pause, seconds_between
from fastloop.core.types import Epochs, Invalid

SETTLE_S = 0.01
"""Seconds for workers and threads of the last epoch to end."""
PAUSE_S = 0.05
"""Seconds in which nothing is asked of the loader."""
MOST_IDLE_S, MOST_IDLE_CHILDREN_S = 0.015, 0.03
"""CPU seconds that idle threads and child processes may take in a pause. Children may take more, as
the clocks of other processes count hundredths of seconds."""
MOST_IDLE_BYTES = 256 << 10
"""Bytes that may be read in a pause in any case: a thread of the interpreter may read a file of its
own."""
FASTER, LEAST_GAIN_S = 3.0, 0.005
"""An honest loader's epochs with a number that could be foreseen take at least 1 / FASTER of the
time of other epochs, or are at most LEAST_GAIN_S faster."""
PAIRS = 10
"""Most pairs of such epochs that are compared; one pair without a gain is enough to pass. With
three pairs, all of them were late by chance on a busy machine."""


def check_idle(batch_nbytes: int) -> None:
    """Raise Invalid if threads or processes of the loader work, or read more than a batch, while
    nothing is asked of it."""
    pause(SETTLE_S)
    # counting reads files of /proc itself; these bytes are subtracted
    counting_nbytes = -_bytes_read()
    threads_s, children_s = other_threads_cpu_ns() / 1e9, _children_seconds()
    nbytes = _bytes_read()
    counting_nbytes += nbytes
    pause(PAUSE_S)
    nbytes = _bytes_read() - nbytes - counting_nbytes
    # A reading above the threshold may be a single tick of 10 ms: the pause goes on until the
    # clocks of processes can be trusted. The allowance stays the same.
    if _has_worked(threads_s, children_s):
        pause(LEAST_SECONDS - PAUSE_S)
        if _has_worked(threads_s, children_s):
            cpu_s = other_threads_cpu_ns() / 1e9 - threads_s + _children_seconds() - children_s
            work = f"{cpu_s:.3f} s of CPU time in a pause of {LEAST_SECONDS} s"
            raise Invalid(f"works outside the window: {work} before it")
    elif nbytes > max(batch_nbytes, MOST_IDLE_BYTES):
        work = f"{nbytes:,} bytes read in a pause of {PAUSE_S} s"
        raise Invalid(f"works outside the window: {work} before it")


def _has_worked(threads_s: float, children_s: float) -> bool:
    """True if threads or children have taken more CPU time than idle ones, since these readings."""
    threads_s = other_threads_cpu_ns() / 1e9 - threads_s
    return threads_s > MOST_IDLE_S or _children_seconds() - children_s > MOST_IDLE_CHILDREN_S


def check_unforeseen_epoch(epochs: Epochs, number: int) -> None:
    """Raise Invalid if epochs with foreseeable numbers are faster than others.

    Their batches were then made before they were asked for. number: a random number of an epoch,
    which has not been asked for before.
    """
    foreseen, unforeseen = [], []
    for pair in range(PAIRS):
        foreseen.append(_seconds(epochs, pair))
        unforeseen.append(_seconds(epochs, number + pair))
        if min(unforeseen) <= FASTER * max(foreseen) + LEAST_GAIN_S:
            return
    times = f"epoch 0 takes {max(foreseen):.2g} s, one of random number {min(unforeseen):.2g} s"
    raise Invalid(f"works outside the window: {times}")


def _seconds(epochs: Epochs, number: int) -> float:
    start_ns = now_ns()
    for _ in epochs(number):
        pass
    return seconds_between(start_ns, now_ns())


def _bytes_read() -> int:
    """Bytes that this process and its living descendants have read so far by system calls, from
    files or the page cache; 0 if the system does not count them."""
    process, total = psutil.Process(), 0
    for each in (process, *process.children(recursive=True)):
        # the process has ended, or the system is macOS, which has no io_counters
        with contextlib.suppress(psutil.Error, AttributeError):
            total += each.io_counters().read_chars  # pyright: ignore[reportAttributeAccessIssue]
    return total


def _children_seconds() -> float:
    """CPU time so far of all living descendants."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        # the process has ended meanwhile
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
