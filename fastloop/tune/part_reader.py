"""Read the first part of an epoch, because a race has no time for whole epochs if they are long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fastloop.core.device_time import synchronize
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline
from fastloop.core.types import Epochs, Invalid, Tree
from fastloop.data.digest import leaves_of
from fastloop.explain.explained_job import FEWEST_BATCHES
from fastloop.sweep.loader_timer import first_batches
from fastloop.trial.window import row_counter

MOST_READING_S = 8.0
"""Reading a part of an epoch ends after this many seconds, so that a budget that is too small is
soon refused."""


@dataclass(frozen=True, kw_only=True)
class EpochPart:
    """The part of an epoch that was read, from its first sample on."""

    samples: int
    batches: int
    is_whole: bool
    """True for a whole epoch."""
    seconds: float
    """Seconds of reading it, with the start and the end of the iterator."""
    fixed_s: float
    """The part of `seconds` that does not grow with an epoch: iter() and the end of the iterator,
    with the start and the end of workers."""

    def epoch_s(self, samples: float) -> float:
        """Seconds of an epoch with this many samples.

        If their number is infinite, which means unknown: seconds of one sample, without fixed_s.
        """
        read_s = self.seconds - self.fixed_s
        if math.isinf(samples):
            return read_s / self.samples
        return self.fixed_s + read_s * samples / self.samples

    def cut(self, epochs: Epochs) -> Epochs:
        """The epochs, each cut to the number of batches of this part."""
        return epochs if self.is_whole else first_batches(epochs, self.batches)


@dataclass(frozen=True, kw_only=True)
class PartReader:
    """Reads parts of epochs, with a step on each batch."""

    step: Callable[[Tree], Any]
    """Called with each batch."""
    device: torch.device
    epoch_s: float
    """Approximate seconds that a part takes."""
    counts_batches: bool = False
    """True: a batch counts as one sample, because batches without tensors have no length."""
    deadline: Deadline = field(default_factory=Deadline)
    """The time after which no further batch is read."""

    def read(self, epochs: Epochs) -> EpochPart:
        """Read the part of an epoch that takes about epoch_s, with at least FEWEST_BATCHES batches.

        Reading ends after MOST_READING_S seconds, even with fewer batches. A fast loader reads more
        in epoch_s than a slow one. Raises Invalid after the deadline, and if there is no sample.
        """
        samples = 0
        batches = 0
        is_whole = True
        count: Callable[[Any], int] = _count_as_one
        start_ns = now_ns()
        iterator = iter(epochs(0))
        first_ns = last_ns = now_ns()
        for batch in iterator:
            if self.deadline.is_over:
                raise Invalid("it was stopped: it takes longer than there was time left")
            if not batches and not self.counts_batches:
                leaves_of(batch)
                count = row_counter(batch)
            samples += count(batch)
            batches += 1
            self.step(batch)
            last_ns = now_ns()
            spent_s = seconds_between(first_ns, last_ns)
            is_enough = spent_s >= self.epoch_s and batches >= FEWEST_BATCHES
            if is_enough or spent_s >= MOST_READING_S:
                is_whole = False
                break
        # Without its last reference, the iterator ends workers that don't persist.
        del iterator
        synchronize(self.device)
        stop_ns = now_ns()
        if not samples:
            raise Invalid("it yields nothing")
        fixed_ns = stop_ns - start_ns - (last_ns - first_ns)
        return EpochPart(
            samples=samples,
            batches=batches,
            is_whole=is_whole,
            seconds=seconds_between(start_ns, stop_ns),
            fixed_s=fixed_ns / 1e9,
        )


def _count_as_one(_: Any) -> int:
    """The samples of a batch of unknown length."""
    return 1
