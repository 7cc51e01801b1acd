"""How much is gathered at once, by how many threads, and how far ahead of its use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

from fastloop.fastloader.indices import MOST_BATCHES
from fastloop.limits import usable_cores

BLOCK_BYTES = 4 << 20
PART_BYTES = 8 << 20
AHEAD_BYTES = 64 << 20
SHORT_BYTES = 4 << 20
MOST_THREADS = 4
BLOCKS_A_THREAD = 4
GROWTH = 4
SLOW_PARTS = 2
OWN = 4
OWN_BYTES = 32 << 20
"""So many blocks, of no more bytes, the consumer makes while it would wait for another one."""


@dataclass(frozen=True)
class Pace:
    """What is chosen for a source where it is not given.

    A block, which is what is made and handed over at once, is as many whole batches as BLOCK_BYTES
    hold, or a part of one that is larger than PART_BYTES (divided.py): a hand-over costs 40 us and
    more where it wakes a thread, and what is made long before it is used has left the cache (in
    blocks of 1.6, 2.4, 4, 8 and 16 MiB epochs of 235 batches of 0.8 MB took 33, 25, 25, 26 and 26
    ms; converted to floats, 27, 17, 19 and 18 ms in those of 1.6, 3.2, 8 and 16). There are at
    least BLOCKS_A_THREAD of them for each thread in an epoch, so that none ends much later than the
    others, and none has more than MOST_BATCHES. The first ones are a single batch, further ones
    GROWTH times as many: the first batch of an epoch comes as soon as it can. Of samples that cost
    more than their copy a batch is made in SLOW_PARTS parts for each thread.

    num_threads: one a usable core (affinity and cgroup quota), at most MOST_THREADS, which fill
    what memory can deliver; no more than have a block each within AHEAD_BYTES. Where rows are only
    copied one core is left to the consumer, who copies too when nothing is ready. None where the
    whole epoch is no larger than SHORT_BYTES: copying that takes less than a millisecond, and
    starting a thread and waiting for it as long (300,000 integers).
    prefetch_factor: two blocks ahead for each thread, one where two of all would be more than
    AHEAD_BYTES. Of parts at least two are ahead for each thread, and those of a whole batch for all
    together, whose memory is taken with the first of them: with the batch that comes next and the
    two that the consumer has these are 4 of 38.5 MB.
    """

    num_threads: int
    prefetch_factor: int
    part_rows: int = 0
    """Rows of a part; 0: no batch is divided."""
    parts_ahead: int = 0
    """For each thread."""

    def batches(self, row_nbytes: int, batch_size: int, num_samples: int) -> Iterator[int]:
        """How many make each block of an epoch, without an end."""
        fair = -(-num_samples // (batch_size * max(1, self.num_threads) * BLOCKS_A_THREAD))
        most = max(1, min(BLOCK_BYTES // max(1, row_nbytes * batch_size), fair, MOST_BATCHES))
        count = 1
        while count < most:
            yield from repeat(count, 1 + self.num_threads)  # the consumer makes blocks, too
            count *= GROWTH
        yield from repeat(most)


def pace_of(
    row_nbytes: int,
    batch_size: int,
    num_samples: int,
    cheap: bool,
    given: tuple[int | None, int | None],
    divisible: bool = False,
) -> Pace:
    """The pace for samples of that many bytes, see Pace.

    cheap: a sample costs no more than its copy. given: num_threads and prefetch_factor; None where
    they are to be chosen. divisible: a batch may be made in parts.
    """
    num_threads, prefetch_factor = given
    epoch_nbytes, block_nbytes = row_nbytes * num_samples, row_nbytes * batch_size
    if cheap:
        block_nbytes = max(block_nbytes, min(BLOCK_BYTES, epoch_nbytes))
    if num_threads is None:
        made_at_once = min(block_nbytes, BLOCK_BYTES) if divisible else block_nbytes
        room = max(1, AHEAD_BYTES // max(1, made_at_once))
        num_threads = max(1, min(MOST_THREADS, usable_cores() - cheap, room))
        if cheap and epoch_nbytes <= SHORT_BYTES:
            num_threads = 0
    chosen = 1 if 2 * num_threads * block_nbytes > AHEAD_BYTES else 2
    batch_nbytes = row_nbytes * batch_size
    parts = _parts(batch_nbytes, batch_size, cheap, num_threads) if divisible else 1
    pace = Pace(num_threads, prefetch_factor or chosen)
    if parts == 1:
        return pace
    ahead = pace.prefetch_factor * parts
    if not prefetch_factor:
        fitting = AHEAD_BYTES * parts // max(1, num_threads * batch_nbytes)
        ahead = max(2, -(-parts // num_threads), min(ahead, fitting))
    return replace(pace, part_rows=-(-batch_size // parts), parts_ahead=ahead)


def _parts(batch_nbytes: int, batch_size: int, cheap: bool, num_threads: int) -> int:
    """How many a batch is made in; 1 where there is no thread to share it with."""
    if not num_threads:
        return 1
    if not cheap:
        return min(SLOW_PARTS * num_threads, batch_size)
    if batch_nbytes <= PART_BYTES:
        return 1
    makers = num_threads + 1  # the consumer is one: of 5 parts of the first batch one would make 3
    return min(makers * -(-batch_nbytes // (PART_BYTES * makers)), batch_size)


def spare(block_nbytes: int) -> int:
    """How many blocks the consumer may make for later while a thread still makes the next one."""
    return max(1, min(OWN, OWN_BYTES // max(1, block_nbytes)))
