"""Detection of a loader's work outside of the epochs that it was asked for: no window contains
it."""

from __future__ import annotations

import contextlib
from statistics import median

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
SUSPECT_S = 0.003
"""CPU seconds from which on a longer pause decides. On a busy machine a thread that works all the
time gets a core for only a part of PAUSE_S."""
MOST_IDLE_BYTES = 256 << 10
"""Bytes that may be read in a pause in any case: a thread of the interpreter may read a file of its
own."""
FASTER, LEAST_GAIN_S = 3.0, 0.005
"""An honest loader's epochs with a number that could be foreseen take at least 1 / FASTER of the
time of other epochs, or are at most LEAST_GAIN_S faster."""
LEAST_PAIRS, LONG_S = 3, 0.3
"""Fewest pairs of such epochs before their medians are compared, unless a pair takes longer than
LONG_S: one epoch of milliseconds may have been interrupted for as long as it takes itself."""
PAIRS = 10
"""Most pairs that are compared; the loader passes as soon as the medians show no gain. With three
pairs, all of them were late by chance on a busy machine."""


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
    if nbytes > max(batch_nbytes, MOST_IDLE_BYTES):
        work = f"{nbytes:,} bytes read in a pause of {PAUSE_S} s"
        raise Invalid(f"works outside the window: {work} before it")
    if not _has_worked(threads_s, children_s, SUSPECT_S, SUSPECT_S):
        return
    # A reading may be a single tick of 10 ms, or the little that a busy machine has left: the pause
    # goes on until the clocks of processes can be trusted. The allowance stays the same.
    pause(LEAST_SECONDS - PAUSE_S)
    if _has_worked(threads_s, children_s, MOST_IDLE_S, MOST_IDLE_CHILDREN_S):
        cpu_s = other_threads_cpu_ns() / 1e9 - threads_s + _children_seconds() - children_s
        work = f"{cpu_s:.3f} s of CPU time in a pause of {LEAST_SECONDS} s"
        raise Invalid(f"works outside the window: {work} before it")


def _has_worked(
    threads_s: float, children_s: float, most_threads_s: float, most_children_s: float
) -> bool:
    """True if threads or children have taken more CPU time than these allowances, since the
    readings threads_s and children_s."""
    threads_s = other_threads_cpu_ns() / 1e9 - threads_s
    return threads_s > most_threads_s or _children_seconds() - children_s > most_children_s


def check_unforeseen_epoch(epochs: Epochs, number: int) -> None:
    """Raise Invalid if epochs with foreseeable numbers are faster than others.

    Their batches were then made before they were asked for. number: a random number of an epoch,
    which has not been asked for before.
    """
    foreseen, unforeseen = [], []
    foreseen_s = unforeseen_s = 0.0
    for pair in range(PAIRS):
        foreseen.append(_seconds(epochs, pair))
        unforeseen.append(_seconds(epochs, number + pair))
        foreseen_s, unforeseen_s = median(foreseen), median(unforeseen)
        is_enough = pair + 1 >= LEAST_PAIRS or foreseen_s + unforeseen_s > LONG_S
        if is_enough and unforeseen_s <= FASTER * foreseen_s + LEAST_GAIN_S:
            return
    times = f"epoch 0 takes {foreseen_s:.2g} s, one of random number {unforeseen_s:.2g} s"
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
