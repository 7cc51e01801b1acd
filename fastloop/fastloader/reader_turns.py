"""ReaderTurns, by which the loop and threads take turns at making the batches of a Dataset."""

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
from fastloop.fastloader.loader_tuning import Tuning
from fastloop.fastloader.loop_or_threads import LoopOrThreads
from fastloop.fastloader.read_times import measure_reading, read_clocks
from fastloop.fastloader.sample_draws import GlobalDraws

LOG = logging.getLogger("fastloop")
STAYS_IN_LOOP = "FastLoader reads in the loop, as its thread failed: %r"
TRIES_AGAIN = "FastLoader read a batch again and goes on, as its thread failed: %r"


@dataclass(frozen=True, kw_only=True)
class ReaderTurns:
    """The ways in which the loop and threads make an epoch's groups, and the choice between them.

    The batches are the same in both ways.
    """

    choice: LoopOrThreads
    tuning: Tuning
    draws: GlobalDraws
    """The generators that the samples draw from: threads get no turn if they would have to share
    them. A later sample may be the first one that shows it."""
    make_in_loop: Stage
    """Does all stages of a group in the loop's thread."""
    map_by_threads: Callable[[int, Iterator[StagedGroup]], Results]
    """(number of threads, groups) -> the groups after all stages, which these threads do."""
    repeats_failed: bool
    """True: if a thread fails to read a batch, the loop's thread reads it again, because some
    samples can be read in the loop's thread only."""

    def map(self, groups: Iterator[StagedGroup]) -> Results:
        """Groups that the loop's thread makes, or threads if they save time; they take turns."""
        choice = self.choice
        is_left = True
        choice.begin_epoch()
        while is_left:
            by_threads = choice.num_threads and not self.draws.shared
            way = self._turn_of_threads if by_threads else self._turn_of_loop
            is_left = yield from way(groups)

    def _turn_of_loop(self, groups: Iterator[StagedGroup]) -> Generator[StagedGroup, None, bool]:
        """Groups that the loop's thread makes; returns True if some are left to threads."""
        choice = self.choice
        is_long = True
        asked_ns = now_ns()
        for group in groups:
            # The clocks are read only if the batch before was long: reading them takes several
            # microseconds, as long as reading some batches.
            begun = read_clocks() if is_long else None
            begin_ns = now_ns()
            staged = self.make_in_loop(group)
            delivered_ns = now_ns()
            is_long = delivered_ns - begin_ns > HANDOVER_NS
            read = None
            step_begin_cpu_ns = 0
            if begun is not None and is_long:
                read = measure_reading(begun, delivered_ns - begin_ns, sum(map(len, group.group)))
                # Counting takes longer than reading if batches are of many small parts.
                if read.waits:
                    read = replace(read, nbytes=count_nbytes(staged.made))
                delivered_ns = now_ns()
                step_begin_cpu_ns = process_cpu_ns()
            yield staged
            # Otherwise this frame would hold the batches while it makes the next ones.
            del staged, group
            begin_ns = asked_ns
            asked_ns = now_ns()
            if is_long or choice.batches_left:
                # The time includes the drawing of the indices, as the threads' times do.
                choice.note_time(asked_ns - begin_ns)
            if read is not None:
                step_cpu_ns = process_cpu_ns() - step_begin_cpu_ns
                step = {"step_ns": asked_ns - delivered_ns, "step_cpu_ns": step_cpu_ns}
                choice.decide_on_threads(replace(read, **step), self.tuning)
            elif not is_long:
                # The hand-over of such a batch by a thread would take longer than reading it.
                choice.num_saving = 0
            if choice.num_threads and not self.draws.shared:
                return True
        return False

    def _turn_of_threads(self, groups: Iterator[StagedGroup]) -> Generator[StagedGroup, None, bool]:
        """Groups that threads make; returns True if some are left to the loop."""
        choice = self.choice
        is_left = has_failed = False

        def draw() -> Iterator[StagedGroup]:
            # The threads get no more groups once their turn has ended, as another pass over the
            # same loader may have ended it.
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
                # Otherwise this frame would hold the batches while it waits for the next ones.
                del staged
                end_ns = now_ns()
                # The batches that are ready at the end of a turn come faster than they are made.
                if choice.num_threads and not is_left:
                    choice.note_time(end_ns - begin_ns)
                begin_ns = end_ns
        return is_left

    def _repeat_failed(self, first: StagedGroup, results: Results) -> Results:
        """Yield the rest of a turn of the threads, from the first group that a thread failed to
        make.

        The loop's thread makes each failed group again. If threads fail repeatedly, it makes all
        later groups too, see LoopOrThreads.note_failure.
        """
        choice = self.choice
        left = deque([first])
        del first
        # The thread ends before the loop reads: it is not known that two may do so at once.
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
            # Otherwise this frame would hold the batches while it makes the next ones.
            del staged, failed
        # A sampler's error comes after the batches that were drawn before.
        if ended is not None:
            raise ended.error


def _is_failed(batch: Any) -> bool:
    return isinstance(batch, FailedBatch)
