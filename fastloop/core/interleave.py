"""Interleaved rounds of trials: every job runs its trial k in round k.

Noise of the machine then affects all jobs equally.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TypeVar

Key = TypeVar("Key")


def rounds(
    num_trials: Mapping[Key, int], *, interleave: bool = True
) -> Iterator[tuple[int, list[Key]]]:
    """Yield (number of the trial, keys of the jobs in the order of this round), round by round.

    num_trials: number of trials of each key. interleave: False: yield all trials of a key, one at a
    time, before the trials of the next key.

    The keys that have trials left take turns at the first place. So each key is first equally often
    if the number of rounds is a multiple of the number of keys. The order of the other keys is
    random, but the same in every process. See google/benchmark#1026 and asv's guide to tuning.
    """
    if not interleave:
        yield from ((number, [key]) for key, count in num_trials.items() for number in range(count))
        return
    for number in range(max(num_trials.values(), default=0)):
        keys = [key for key, count in num_trials.items() if number < count]
        # Only the first job of a round follows the end of another round, which may leave the
        # machine in a different state. So the jobs take turns at the first place. The seed is the
        # number of the round, so that all ranks (processes of a job) shuffle alike.
        first = keys.pop(number % len(keys))
        random.Random(number).shuffle(keys)
        yield number, [first, *keys]
