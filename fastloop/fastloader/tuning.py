"""Automatic choice of how much is gathered at once, by how many threads, how far ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

from fastloop.core.cgroup import usable_cores
from fastloop.fastloader.batching import MAX_BATCHES

GROUP_BYTES = 4 << 20
PART_BYTES = 8 << 20
AHEAD_BYTES = 64 << 20
UNTHREADED_BYTES = 4 << 20
MAX_THREADS = 4
GROUPS_PER_THREAD = 4
GROUP_GROWTH = 4
PARTS_PER_THREAD = 2
CONSUMER_GROUPS = 4
CONSUMER_BYTES = 32 << 20
"""The consumer makes at most CONSUMER_GROUPS groups, of at most CONSUMER_BYTES, where it would
otherwise wait for a thread."""


@dataclass(frozen=True)
class Tuning:
    """The sizes and numbers chosen for a source.

    Batches are made and handed over in groups: as many whole batches as GROUP_BYTES hold, or a part
    of one batch that is larger than PART_BYTES (pipeline.py). A hand-over costs 40 us and more
    where it wakes a thread, and data made long before its use has left the cache: in groups of
    1.6, 2.4, 4, 8 and 16 MiB epochs of 235 batches of 0.8 MB took 33, 25, 25, 26 and 26 ms;
    converted to floats, 27, 17, 19 and 18 ms in groups of 1.6, 3.2, 8 and 16 MiB. An epoch has at
    least GROUPS_PER_THREAD groups for each thread, so that no thread ends much later than the
    others, and no group has more than MAX_BATCHES batches. The first groups are single batches,
    later ones GROUP_GROWTH times as long, so that the first batch of an epoch is ready soon. A
    batch of samples that cost more than their copy is made in PARTS_PER_THREAD parts per thread.

    num_threads: one per usable core (affinity and cgroup quota), at most MAX_THREADS, which
    saturate the memory's bandwidth, and at most as many as have a group each within AHEAD_BYTES.
    Where rows are only copied, one core is left to the consumer, which copies too when nothing is
    ready. 0 where the whole epoch is no larger than UNTHREADED_BYTES: copying it takes less than
    a millisecond (300,000 integers), as long as starting a thread and waiting for it.

    prefetch_factor: two groups ahead for each thread, or one where two would exceed AHEAD_BYTES in
    all. Of parts at least two are ahead for each thread, and together at least those of a whole
    batch, whose memory is taken with its first part: with the next batch and the two that the
    consumer holds, these are 4 batches, of 38.5 MB for example.
    """

    num_threads: int
    prefetch_factor: int
    part_rows: int = 0
    """Rows of a part; 0: no batch is divided."""
    parts_ahead: int = 0
    """Parts ahead for each thread."""

    def batch_counts(self, row_nbytes: int, batch_size: int, num_samples: int) -> Iterator[int]:
        """The number of batches of each group of an epoch; endless."""
        fair = -(-num_samples // (batch_size * max(1, self.num_threads) * GROUPS_PER_THREAD))
        most = max(1, min(GROUP_BYTES // max(1, row_nbytes * batch_size), fair, MAX_BATCHES))
        count = 1
        while count < most:
            yield from repeat(count, 1 + self.num_threads)  # the consumer makes groups, too
            count *= GROUP_GROWTH
        yield from repeat(most)


def choose_tuning(
    row_nbytes: int,
    batch_size: int,
    num_samples: int,
    cheap: bool,
    requested: tuple[int | None, int | None],
    divisible: bool = False,
) -> Tuning:
    """Choose the tuning for samples of `row_nbytes` bytes, see Tuning.

    cheap: a sample costs no more than its copy.
    requested: num_threads and prefetch_factor; None where they are to be chosen.
    divisible: a batch may be made in parts.
    """
    num_threads, prefetch_factor = requested
    epoch_nbytes, batch_nbytes = row_nbytes * num_samples, row_nbytes * batch_size
    group_nbytes = max(batch_nbytes, min(GROUP_BYTES, epoch_nbytes)) if cheap else batch_nbytes
    if num_threads is None:
        unit_nbytes = min(group_nbytes, GROUP_BYTES) if divisible else group_nbytes
        most = max(1, AHEAD_BYTES // max(1, unit_nbytes))
        num_threads = max(1, min(MAX_THREADS, usable_cores() - cheap, most))
        if cheap and epoch_nbytes <= UNTHREADED_BYTES:
            num_threads = 0
    default_factor = 1 if 2 * num_threads * group_nbytes > AHEAD_BYTES else 2
    parts = _parts_per_batch(batch_nbytes, batch_size, cheap, num_threads) if divisible else 1
    tuning = Tuning(num_threads, prefetch_factor or default_factor)
    if parts == 1:
        return tuning
    ahead = tuning.prefetch_factor * parts
    if not prefetch_factor:
        most = AHEAD_BYTES * parts // max(1, num_threads * batch_nbytes)
        ahead = max(2, -(-parts // num_threads), min(ahead, most))
    return replace(tuning, part_rows=-(-batch_size // parts), parts_ahead=ahead)


def _parts_per_batch(batch_nbytes: int, batch_size: int, cheap: bool, num_threads: int) -> int:
    """1 where a batch is not divided, as without threads to share it."""
    if not num_threads:
        return 1
    if not cheap:
        return min(PARTS_PER_THREAD * num_threads, batch_size)
    if batch_nbytes <= PART_BYTES:
        return 1
    # a multiple of the makers, of which the consumer is one: of 5 parts one of 2 would make 3
    makers = num_threads + 1
    return min(makers * -(-batch_nbytes // (PART_BYTES * makers)), batch_size)


def max_consumer_groups(group_nbytes: int) -> int:
    """Number of groups that the consumer may make in advance while it would wait for a thread."""
    return max(1, min(CONSUMER_GROUPS, CONSUMER_BYTES // max(1, group_nbytes)))
