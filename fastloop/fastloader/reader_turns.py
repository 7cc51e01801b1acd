"""ReaderTurns, by which the loop's thread and other threads take turns at making batches.

LoopOrThreads compares the times of both ways, and decides which way has the next turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.core.thread_turns import HANDOVER_NS
from fastloop.fastloader.batch_stages import Results, Stage, StagedGroup
from fastloop.fastloader.bytes_ahead import count_nbytes
from fastloop.fastloader.failed_batch import FailedBatch, try_batch
from fastloop.fastloader.global_draws import GlobalDraws
from fastloop.fastloader.loader_tuning import Tuning
from fastloop.fastloader.loop_or_threads import LoopOrThreads
from fastloop.fastloader.read_times import ReadTimes, ThreadClocks, measure_reading, read_clocks

LOG = logging.getLogger("fastloop")
STAYS_IN_LOOP = "FastLoader reads in the loop, as its thread failed: %r"
TRIES_AGAIN = "FastLoader read a batch again and goes on, as its thread failed: %r"


@dataclass(frozen=True, kw_only=True)
class ReaderTurns:
    """The two ways of making the groups of an epoch, by the loop or by threads, and the choice.

    A group is one or more batches of a Dataset that are made together, in stages. The batches are
    the same in both ways.
    """

    choice: LoopOrThreads
    tuning: Tuning
    draws: GlobalDraws
    """The random generators that the samples draw from. Threads get no turn if they would have to
    share a generator. This may become known only while samples are read."""
    make_in_loop: Stage
    """A group -> the group after all stages, which the loop's thread does."""
    map_by_threads: Callable[[int, Iterator[StagedGroup]], Results]
    """(number of threads, groups) -> the groups after all stages, which these threads do."""
    repeats_failed: bool
    """True: if a thread fails to read a batch, the loop's thread reads the batch again, because
    some samples can be read in the loop's thread only."""

    @property
    def _is_for_threads(self) -> bool:
        """True if threads make the next groups."""
        return self.choice.num_threads > 0 and not self.draws.shared

    def map(self, groups: Iterator[StagedGroup]) -> Results:
        """Yield the groups after all stages; the loop's thread and other threads take turns."""
        self.choice.begin_epoch()
        is_left = True
        while is_left:
            take_turn = self._turn_of_threads if self._is_for_threads else self._turn_of_loop
            is_left = yield from take_turn(groups)

    def _turn_of_loop(self, groups: Iterator[StagedGroup]) -> Generator[StagedGroup, None, bool]:
        """Yield groups that the loop's thread makes, until threads get a turn.

        Returns True if groups may be left for the threads.
        """
        choice = self.choice
        is_long = True
        asked_ns = now_ns()
        for group in groups:
            # Reading the clocks takes several microseconds, as long as reading some batches. So the
            # clocks are read only if the group before took long.
            begun = read_clocks() if is_long else None
            begin_ns = now_ns()
            staged = self.make_in_loop(group)
            reading_ns = now_ns() - begin_ns
            is_long = reading_ns > HANDOVER_NS
            read = None
            delivered_ns = delivered_cpu_ns = 0
            if begun is not None and is_long:
                read = _measure(begun, reading_ns, staged)
                delivered_ns, delivered_cpu_ns = now_ns(), process_cpu_ns()
            yield staged
            # Without `del`, this frame would hold the batches while it makes the next ones.
            del staged, group
            asked_before_ns, asked_ns = asked_ns, now_ns()
            if is_long or choice.batches_left:
                # This is the time from one request to the next. It includes the drawing of the
                # indices, as the times of threads do.
                choice.note_time(asked_ns - asked_before_ns)
            if read is not None:
                step_cpu_ns = process_cpu_ns() - delivered_cpu_ns
                read = replace(read, step_ns=asked_ns - delivered_ns, step_cpu_ns=step_cpu_ns)
                choice.decide_on_threads(read, self.tuning)
            elif not is_long:
                # Threads save nothing here: to hand over such a batch takes longer than to read it.
                choice.num_saving = 0
            if self._is_for_threads:
                return True
        return False

    def _turn_of_threads(self, groups: Iterator[StagedGroup]) -> Generator[StagedGroup, None, bool]:
        """Yield groups that threads make, until the loop gets a turn.

        Returns True if groups may be left for the loop.
        """
        choice = self.choice
        is_left = has_failed = False

        def draw() -> Iterator[StagedGroup]:
            """Yield the groups of this turn."""
            # `num_threads` is 0 once the turn has ended. Another pass over the same loader shares
            # `choice`, and may end the turn, too.
            nonlocal is_left
            while choice.num_threads and not has_failed:
                if (group := next(groups, None)) is None:
                    return
                yield group
            is_left = True

        results = self.map_by_threads(choice.num_threads, draw())
        with closing(results):
            begin_ns = now_ns()
            for staged in results:
                has_failed = self.repeats_failed and choice.may_need_loop(staged.made)
                if has_failed:
                    yield from self._repeat_failed(staged, results)
                    break
                yield staged
                # Without `del`, this frame would hold the batches while it waits for the next ones.
                del staged
                end_ns = now_ns()
                # Once no group is drawn any more, the last batches of the turn are ready already.
                # Their times would be too short, and are not noted.
                if choice.num_threads and not is_left:
                    choice.note_time(end_ns - begin_ns)
                begin_ns = end_ns
        return is_left

    def _repeat_failed(self, first: StagedGroup, results: Results) -> Results:
        """Yield the rest of a turn of the threads, after a thread has failed to make a group.

        first: the failed group. results: the later groups of the turn. The loop's thread makes each
        failed group again. If threads fail repeatedly, the loop's thread makes all groups after the
        turn, see LoopOrThreads.note_failure.
        """
        choice = self.choice
        left = deque([first])
        del first
        # The threads finish all groups before the loop reads, because the samples may not allow two
        # threads to read at once.
        ended = try_batch(left.extend, results)
        while left:
            staged = left.popleft()
            failed = next(filter(_is_failed, staged.made), None)
            if failed is not None:
                staged = self.make_in_loop(StagedGroup(staged.group, staged.number))
                choice.own_errors |= {type(each.error) for each in filter(_is_failed, staged.made)}
                if not any(map(_is_failed, staged.made)) and not choice.needs_loop:
                    choice.note_failure()
                    LOG.info(STAYS_IN_LOOP if choice.needs_loop else TRIES_AGAIN, failed.error)
            yield staged
            # Without `del`, this frame would hold the batches while it makes the next ones.
            del staged, failed
        # An error of the sampler is raised after the batches that were drawn before the error.
        if ended is not None:
            raise ended.error


def _measure(begun: ThreadClocks, reading_ns: int, staged: StagedGroup) -> ReadTimes:
    """The times of a group that the loop's thread has just read. begun: the clocks before."""
    read = measure_reading(begun, reading_ns, sum(map(len, staged.group)))
    # The bytes are counted only if samples wait, because counting may take longer than reading if
    # batches have many small parts.
    return replace(read, nbytes=count_nbytes(staged.made)) if read.waits else read


def _is_failed(batch: Any) -> bool:
    """True if an error has taken the place of the batch."""
    return isinstance(batch, FailedBatch)
