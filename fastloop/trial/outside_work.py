"""Check that a loader does no work outside of the windows, the timed parts of a trial.

Such a loader would seem faster than it is. `check_idle` looks for work in a pause, and
`check_unforeseen_epoch` for epochs that were made before they were asked for. The shadow of a
trial, which is the same trial run again, calls both.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.number_text import significant
from fastloop.core.spans import now_ns, other_threads_cpu_ns, pause, seconds_between
from fastloop.core.types import Epochs, Invalid

SETTLE_S = 0.01
"""Seconds for workers and threads of the last epoch to end."""
PAUSE_S = 0.05
"""Seconds in which nothing is asked of the loader."""
MOST_IDLE_S = 0.015
"""CPU seconds that idle threads may take in a pause."""
MOST_IDLE_CHILDREN_S = 0.03
"""CPU seconds that idle child processes may take in a pause. Threads may take less, because only
the clocks of other processes count hundredths of seconds."""
SUSPECT_S = 0.003
"""If idle threads or child processes take more CPU seconds than this, a longer pause decides. On a
busy machine, a thread that works all the time gets a core for only a part of PAUSE_S."""
MOST_IDLE_BYTES = 256 << 10
"""Bytes that may be read in a pause even if a batch is smaller: a thread of the interpreter may
read one of Python's own files."""
MOST_TIMES_FASTER = 3.0
"""An epoch with a foreseeable number (0, 1, …) may be this many times as fast as an epoch with a
random number, apart from LEAST_GAIN_S. A greater difference shows that the loader made the epoch
before it was asked for."""
LEAST_GAIN_S = 0.005
"""Seconds of difference, beyond MOST_TIMES_FASTER, that are attributed to chance."""
LEAST_PAIRS = 3
"""Minimum number of pairs, each of a foreseen and an unforeseen epoch, before the medians are
compared. One pair is not enough for epochs of milliseconds, because an interruption may last as
long as such an epoch."""
LONG_S = 0.3
"""If a pair of epochs takes longer than these seconds, it is compared without further pairs."""
MOST_PAIRS = 10
"""Maximum number of compared pairs. A loader passes as soon as the medians show no gain, but three
pairs are too few to refuse it: on a busy machine, all three unforeseen epochs may be late by
chance."""


def check_idle(batch_nbytes: int) -> None:
    """Raise Invalid if the loader works, or reads more than a batch, while nothing is asked of it.

    The work is that of other threads of this process, and of its descendants. batch_nbytes: size of
    a batch in bytes.
    """
    pause(SETTLE_S)
    before, before_nbytes = _CpuTimes.now(), _bytes_read()
    pause(PAUSE_S)
    nbytes = _bytes_read() - before_nbytes
    if nbytes > max(batch_nbytes, MOST_IDLE_BYTES):
        work = f"{nbytes:,} bytes read in a pause of {PAUSE_S} s"
        raise Invalid(f"works outside the window: {work} before it")
    if not before.growth().is_above(SUSPECT_S, SUSPECT_S):
        return
    # A small CPU time may be a single tick of 10 ms. It may also come from a thread that works all
    # the time, but gets only a small part of a core on a busy machine. So the pause is prolonged
    # until the clocks of processes can be trusted. The allowed CPU time stays the same.
    pause(LEAST_SECONDS - PAUSE_S)
    grown = before.growth()
    if grown.is_above(MOST_IDLE_S, MOST_IDLE_CHILDREN_S):
        cpu_s = grown.threads_s + grown.children_s
        work = f"{cpu_s:.3f} s of CPU time in a pause of {LEAST_SECONDS} s"
        raise Invalid(f"works outside the window: {work} before it")


def check_unforeseen_epoch(epochs: Epochs, number: int) -> None:
    """Raise Invalid if epochs with foreseeable numbers are faster than others.

    The loader has then made the faster epochs before they were asked for. number: a random number
    of an epoch that has not been asked for before.
    """
    foreseen, unforeseen = [], []
    foreseen_s = unforeseen_s = 0.0
    for pair in range(MOST_PAIRS):
        foreseen.append(_seconds(epochs, pair))
        unforeseen.append(_seconds(epochs, number + pair))
        foreseen_s, unforeseen_s = median(foreseen), median(unforeseen)
        is_enough = pair + 1 >= LEAST_PAIRS or foreseen_s + unforeseen_s > LONG_S
        if is_enough and unforeseen_s <= MOST_TIMES_FASTER * foreseen_s + LEAST_GAIN_S:
            return
    first, random_one = significant(foreseen_s, 2), significant(unforeseen_s, 2)
    times = f"epoch 0 takes {first} s, one of random number {random_one} s"
    raise Invalid(f"works outside the window: {times}")


def _seconds(epochs: Epochs, number: int) -> float:
    """Seconds of reading an epoch with this number."""
    start_ns = now_ns()
    for _ in epochs(number):
        pass
    return seconds_between(start_ns, now_ns())


@dataclass(frozen=True)
class _CpuTimes:
    """CPU time of this process's other threads, and of its descendants."""

    threads_s: float
    """CPU seconds of the other threads."""
    children_s: float
    """CPU seconds of the descendants."""

    @staticmethod
    def now() -> _CpuTimes:
        """Take the present times."""
        return _CpuTimes(other_threads_cpu_ns() / 1e9, _children_seconds())

    def growth(self) -> _CpuTimes:
        """The CPU time that was spent since this reading."""
        now = self.now()
        return _CpuTimes(now.threads_s - self.threads_s, now.children_s - self.children_s)

    def is_above(self, most_threads_s: float, most_children_s: float) -> bool:
        """True if the threads have taken more than most_threads_s, or the descendants more than
        most_children_s."""
        return self.threads_s > most_threads_s or self.children_s > most_children_s


def _children_seconds() -> float:
    """CPU seconds so far of all living descendants."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        # The process may have ended meanwhile.
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _bytes_read() -> int:
    """Bytes that the other threads of this process, and its living descendants, have read so far by
    system calls, from disk, the page cache or pipes; 0 if the system does not count them.

    Only the difference between two calls by the same thread is meaningful.
    """
    # Counting itself reads files of /proc, 4 KB for each descendant. So the bytes that this thread
    # has read are subtracted; the bytes of other threads stay in the total.
    process = psutil.Process()
    total = -_bytes_read_here()
    for each in (process, *process.children(recursive=True)):
        # The process may have ended, and macOS has no io_counters.
        with contextlib.suppress(psutil.Error, AttributeError):
            total += each.io_counters().read_chars  # pyright: ignore[reportAttributeAccessIssue]
    return total


def _bytes_read_here() -> int:
    """Bytes that this thread has read so far by system calls; 0 if the system does not count
    them."""
    with contextlib.suppress(OSError):
        # proc_pid_io(5): the first line is `rchar: <bytes>`.
        return int(Path("/proc/thread-self/io").read_text(encoding="ascii").split()[1])
    return 0
