"""LoopOrThreads, which chooses whether the loop or threads read a Dataset, by the times of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fastloop.core.thread_turns import CONFIRMED, TURN
from fastloop.fastloader.bytes_ahead import AHEAD_BYTES
from fastloop.fastloader.failed_batch import FailedBatch
from fastloop.fastloader.loader_tuning import Tuning
from fastloop.fastloader.read_times import ReadTimes

LONG_NS, CONFIRMED_LONG = 20_000_000, 2
"""Threads get a turn after CONFIRMED batches in a row for which they should have saved time.
CONFIRMED_LONG batches suffice if the saving for the last one is more than LONG_NS."""
FEWEST_COMPARED = 3
"""Minimum number of batches of each way, from one epoch, that are compared."""
FORGIVING = 64
"""A batch that only a thread failed to read is forgiven if threads have made this many since the
last such failure: an error of a disk or a network may have passed, and few batches are read
twice."""
MOST_EVIDENCE, DECIDED = 1.0, 1.9
"""The logarithm of the ratio of the two times is evidence; a comparison gives at most MOST_EVIDENCE
of it. A sum of more than DECIDED is final: after two comparisons if one way takes less than 0.39 of
the other's time. A turn in which one way takes longer by more than the factor e ends at once."""


@dataclass
class LoopOrThreads:
    """The number of threads that save time by reading ahead, judging by the loader's batches so
    far.

    If samples are cheap, or if the loop only traverses batches, the loop reads faster itself. If
    threads should save time, they take turns with the loop until one of the two ways has proven
    faster: threads may still take the cores, or Python's lock, from a step that needs them. The
    batches are the same in both ways. Only batches of one epoch are compared, because another epoch
    may have other steps.
    """

    num_threads: int = 0
    """Number of threads that read now; 0: the loop reads."""
    num_saving: int = 0
    """Batches in a row for which threads should have saved time."""
    batches_left: int = 0
    """Batches until this turn ends; 0: the loop reads until threads should save time."""
    turn_threads: int = 0
    """Number of threads that had the last turn."""
    loop_ns: tuple[int, ...] = ()
    """Times from one batch to the next that the loop has read itself: the last ones."""
    threads_ns: tuple[int, ...] = ()
    """Times from one batch to the next that threads have read: the last ones."""
    num_comparisons: int = 0
    evidence: float = 0.0
    """Sum of the logarithms of the ratio of the loop's time for a batch to the threads' time: the
    threads lead if the sum is positive."""
    needs_loop: bool = False
    """True once the loop could read two batches that a thread could not, see note_failure."""
    num_since_failure: int = FORGIVING
    """Batches that threads have made since the last one that only they could not read."""
    own_errors: frozenset[type[Exception]] = frozenset()
    """Types of errors that samples have raised in the loop, too."""

    @property
    def is_decided(self) -> bool:
        """True once one of the two ways has proven faster, or needed, and is used from now on."""
        return self.needs_loop or abs(self.evidence) > DECIDED

    def may_need_loop(self, batches: Sequence[Any]) -> bool:
        """True if one of a thread's batches is an error that may be due to the thread."""
        # An error of a type that the loop meets as well is the samples' own. To read each of many
        # broken samples twice would take twice as long.
        failed = (each for each in batches if isinstance(each, FailedBatch))
        return any(type(each.error) not in self.own_errors for each in failed)

    def note_failure(self) -> None:
        """Note that the loop could read a batch that a thread could not.

        After one failure threads go on, because the error may have passed. If threads fail again
        within FORGIVING batches, the loop reads all later batches: the samples can't be read in
        another thread.
        """
        if self.num_since_failure < FORGIVING:
            self.needs_loop = True
            self.num_threads = 0
            self.batches_left = 0
        self.num_since_failure = 0

    def begin_epoch(self) -> None:
        """Forget the times of another epoch."""
        self.loop_ns = self.threads_ns = ()

    def note_time(self, between_ns: int) -> None:
        """Note the time from a batch to the next one, which was read in this turn's way."""
        if self.num_threads:
            self.num_since_failure += 1
            self.threads_ns = (*self.threads_ns, between_ns)[-TURN:]
        else:
            self.loop_ns = (*self.loop_ns, between_ns)[-TURN:]
        self.batches_left = max(0, self.batches_left - 1)
        threads_lead = self.evidence > 0
        if self.is_decided or not (self.num_threads or threads_lead):
            return
        is_leading = (self.num_threads > 0) == threads_lead
        if not is_leading and self._is_clear():
            self.batches_left = 0
        if self.batches_left:
            return
        if is_leading:
            # If the loop leads, threads get their next turn once they should save time again.
            self.num_threads = 0
            self.loop_ns = ()
            self.batches_left = TURN
        else:
            self._compare()

    def _find_evidence(self) -> float:
        """The evidence of the times so far; 0.0 if there are too few."""
        if min(len(self.loop_ns), len(self.threads_ns)) < FEWEST_COMPARED:
            return 0.0
        # The first turns of a program have slow steps, which a median leaves out. The median of
        # threads would be too short, as their batches come in groups.
        of_threads = sorted(self.threads_ns)[:-1]
        ratio = median(self.loop_ns) * len(of_threads) / max(1, sum(of_threads))
        return math.log(max(ratio, 1e-9))

    def _is_clear(self) -> bool:
        return abs(self._find_evidence()) > MOST_EVIDENCE

    def _compare(self) -> None:
        self.evidence += min(MOST_EVIDENCE, max(-MOST_EVIDENCE, self._find_evidence()))
        self.num_comparisons += 1
        # Without evidence, for example after short epochs, threads read if they should save time.
        self.num_threads = self.turn_threads if self.evidence >= 0 else 0
        self.batches_left = TURN << min(40, 2 * self.num_comparisons)

    def decide_on_threads(self, times: ReadTimes, tuning: Tuning) -> None:
        """Give the threads a turn if they should have saved time for some batches, up to this
        one."""
        if self.batches_left or self.num_threads or self.is_decided:
            return
        numbers = {1, tuning.num_threads}
        if times.waits and tuning.waiting_threads and times.nbytes is not None:
            fitting = AHEAD_BYTES // max(1, tuning.prefetch_factor * times.nbytes)
            numbers.add(max(tuning.num_threads, min(tuning.waiting_threads, fitting)))
        saved_ns, num_threads = max(
            (times.find_saving_ns(each, tuning.num_cores), each) for each in numbers
        )
        self.num_saving = self.num_saving + 1 if saved_ns > 0 else 0
        if self.num_saving >= (CONFIRMED_LONG if saved_ns > LONG_NS else CONFIRMED):
            self.num_threads = self.turn_threads = num_threads
            self.num_saving = 0
            self.threads_ns = ()
            self.batches_left = TURN
