"""How much is gathered at once, by how many threads, and how far ahead of its use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from fastloop.fastloader.indices import MOST_BATCHES
from fastloop.limits import usable_cores

BLOCK_BYTES = 8 << 20
AHEAD_BYTES = 64 << 20
SHORT_BYTES = 4 << 20
MOST_THREADS = 4
BLOCKS_A_THREAD = 4
GROWTH = 4
OWN = 4
"""Blocks that the consumer makes while it would wait for another one, where they are small."""


@dataclass(frozen=True)
class Pace:
    """What is chosen for a source where it is not given.

    A block, which is what is made and handed over at once, is as many whole batches as BLOCK_BYTES
    hold, at least one: a hand-over costs 40 us and more where it wakes a thread (in blocks of 1, 2,
    4 and 8 MiB epochs of 235 batches of 0.8 MB took 38, 32, 29 and 26 ms), and a block larger than
    the cache is written to memory. There are at least BLOCKS_A_THREAD of them for each thread in an
    epoch, so that none ends much later than the others, and none has more than MOST_BATCHES. The
    first ones are a single batch, further ones GROWTH times as many: the first batch of an epoch
    comes as soon as it can.

    num_threads: one a usable core (affinity and cgroup quota), at most MOST_THREADS, which fill
    what memory can deliver; no more than have a block each within AHEAD_BYTES. Where rows are only
    copied one core is left to the consumer, who copies too when nothing is ready. None where the
    whole epoch is no larger than SHORT_BYTES: copying that takes less than a millisecond, and
    starting a thread and waiting for it as long (300,000 integers).
    prefetch_factor: two blocks ahead for each thread, one where two of all would be more than
    AHEAD_BYTES. Beside these there are the one in the making for each thread, the consumer's own
    and the two that it has: 5 of 38.5 MB on two cores.
    """

    num_threads: int
    prefetch_factor: int

    def batches(self, row_nbytes: int, batch_size: int, num_samples: int) -> Iterator[int]:
        """How many make each block of an epoch, without an end."""
        fair = -(-num_samples // (batch_size * max(1, self.num_threads) * BLOCKS_A_THREAD))
        most = max(1, min(BLOCK_BYTES // max(1, row_nbytes * batch_size), fair, MOST_BATCHES))
        count = 1
        while count < most:
            yield from repeat(count, max(1, self.num_threads))
            count *= GROWTH
        yield from repeat(most)


def pace_of(
    row_nbytes: int,
    batch_size: int,
    num_samples: int,
    cheap: bool,
    given: tuple[int | None, int | None],
) -> Pace:
    """The pace for samples of that many bytes, see Pace.

    cheap: a sample costs no more than its copy. given: num_threads and prefetch_factor; None where
    they are to be chosen.
    """
    num_threads, prefetch_factor = given
    epoch_nbytes, block_nbytes = row_nbytes * num_samples, row_nbytes * batch_size
    if cheap:
        block_nbytes = max(block_nbytes, min(BLOCK_BYTES, epoch_nbytes))
    if num_threads is None:
        room = max(1, AHEAD_BYTES // max(1, block_nbytes))
        num_threads = max(1, min(MOST_THREADS, usable_cores() - cheap, room))
        if cheap and epoch_nbytes <= SHORT_BYTES:
            num_threads = 0
    if not prefetch_factor:
        prefetch_factor = 1 if 2 * num_threads * block_nbytes > AHEAD_BYTES else 2
    return Pace(num_threads, prefetch_factor)


def spare(row_nbytes: Sequence[int], batch_size: int) -> int:
    """How many blocks the consumer may make for later while a thread still makes the next one."""
    block_nbytes = max(BLOCK_BYTES, sum(row_nbytes) * batch_size)
    return max(1, min(OWN, OWN * BLOCK_BYTES // block_nbytes))
