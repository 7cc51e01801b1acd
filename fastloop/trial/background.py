"""Work of a loader outside of the epochs that it was asked for, which no window would contain."""

from __future__ import annotations

import contextlib

import psutil

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.spans import now_ns, other_threads_cpu_ns, pause, seconds_between
from fastloop.core.types import Epochs, Invalid

SETTLE_S = 0.01
"""Time for workers and threads of the last epoch to end."""
PAUSE_S = 0.05
"""Time in which nothing is asked of the loader."""
MOST_IDLE_S, MOST_IDLE_CHILDREN_S = 0.015, 0.03
"""CPU time that idle threads and child processes may take in a pause, which then goes on until
LEAST_SECONDS have passed: the clocks of processes count hundredths of seconds."""
MOST_IDLE_BYTES = 256 << 10
"""Allowed in any case: a thread of the interpreter may read a file of its own in a pause."""
FASTER, LEAST_GAIN_S = 3.0, 0.005
"""An epoch that could be foreseen takes at least 1 / FASTER of the time of one that could not."""
PAIRS = 10
"""Most pairs of such epochs that are compared; one pair without a gain is enough to pass. Among
three, all were late by chance on a busy machine."""


def check_idle(batch_nbytes: int) -> None:
    """Raise Invalid if threads or processes of the loader work, or read more than a batch, while
    nothing is asked of it."""
    pause(SETTLE_S)
    counting_nbytes = -_bytes_read()  # what looking at all processes reads itself
    threads_s, children_s = other_threads_cpu_ns() / 1e9, _children_seconds()
    nbytes = _bytes_read()
    counting_nbytes += nbytes
    pause(PAUSE_S)
    nbytes = _bytes_read() - nbytes - counting_nbytes
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
    """Raise Invalid if epochs are faster if their numbers could be foreseen: their batches were
    made before they were asked for.

    number: an epoch that nothing asked for before, and whose number is random.
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
        with contextlib.suppress(psutil.Error, AttributeError):  # it ended; macOS
            total += each.io_counters().read_chars  # pyright: ignore[reportAttributeAccessIssue]
    return total


def _children_seconds() -> float:
    """CPU time so far of all living descendants."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
    return total
