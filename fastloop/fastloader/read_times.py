"""Measure the reading of a batch by the loop, and how much time threads would have saved."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from fastloop.core.spans import process_cpu_ns
from fastloop.core.thread_turns import HANDOVER_NS, HANDOVER_SHARE

LOCK_NS = 50_000
"""The cost of a sample that one of several threads reads: each call of torch or numpy lets another
thread have Python's lock. 8,000 texts of 15 us each, read by two threads on two cores, took 60 us
each (experiments/suite, ragged_text)."""
WAITING_SHARE = 0.2
"""If reading uses a smaller share of a core than this, the samples wait for a disk or a network."""


@dataclass(frozen=True, kw_only=True)
class ThreadClocks:
    """The CPU time and the number of a thread's pauses at one moment."""

    cpu_ns: int
    """CPU time of its process."""
    pauses: int
    """How often the thread has given up its core; always 0 if the system does not count that."""


def read_clocks() -> ThreadClocks:
    """The clocks of this thread."""
    pauses = 0
    if sys.platform == "linux":
        # Other systems do not count the pauses of a thread, and some lack this module.
        import resource

        pauses = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return ThreadClocks(cpu_ns=process_cpu_ns(), pauses=pauses)


@dataclass(frozen=True, kw_only=True)
class ReadTimes:
    """The times of a batch that the loop has read itself, and its size."""

    reading_ns: int
    cpu_ns: int
    """CPU time of the process during the reading: a Dataset may compute in its own threads."""
    pauses: int
    """How often the loop's thread gave up its core during the reading, as it does to wait."""
    num_samples: int
    nbytes: int | None = None
    """Bytes of the batch; None if they are not known."""
    step_ns: int = 0
    """Time from the delivery of the batch until the next one was asked for."""
    step_cpu_ns: int = 0
    """CPU time of the process during that time."""

    @property
    def waits(self) -> bool:
        """True if the samples wait. A thread that merely lacks a core on a busy machine does not
        pause for each sample."""
        uses_little = self.cpu_ns < WAITING_SHARE * self.reading_ns
        return uses_little and 2 * self.pauses >= self.num_samples

    def find_saving_ns(self, num_threads: int, num_cores: int) -> float:
        """The time that this many threads would have saved, if they read as fast as the loop.

        They read the next batches during the step, on the cores that it leaves to them, and all at
        once. Each hand-over of a batch costs time, and with several threads each sample.
        """
        busy_ns = self.cpu_ns if self.waits else self.reading_ns
        # A step in several threads of OpenMP makes no progress on fewer cores than threads, as they
        # wait for each other: reading that does not fit beside it lasts as long as before.
        spare_ns = max(0, num_cores * self.step_ns - self.step_cpu_ns)
        unhidden_ns = max(0, busy_ns - spare_ns) / min(num_threads, num_cores)
        at_best_ns = max(self.reading_ns / num_threads, self.step_ns + unhidden_ns)
        costs_ns = HANDOVER_NS + HANDOVER_SHARE * busy_ns
        if num_threads > 1:
            costs_ns += LOCK_NS * self.num_samples
        return self.reading_ns + self.step_ns - at_best_ns - costs_ns


def measure_reading(begun: ThreadClocks, reading_ns: int, num_samples: int) -> ReadTimes:
    """The times of a batch that has just been read. begun: the clocks before."""
    end = read_clocks()
    return ReadTimes(
        reading_ns=reading_ns,
        cpu_ns=end.cpu_ns - begun.cpu_ns,
        pauses=end.pauses - begun.pauses,
        num_samples=num_samples,
    )
