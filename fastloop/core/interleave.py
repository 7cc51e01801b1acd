"""Interleaved rounds: trial k of every job runs in round k, so that machine noise affects all jobs
equally."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TypeVar

Key = TypeVar("Key")


def rounds(
    num_trials: Mapping[Key, int], *, interleave: bool = True
) -> Iterator[tuple[int, list[Key]]]:
    """Yield (trial number, keys in the order in which they run that trial), round by round.

    num_trials: number of trials of each key. The keys that have trials left take turns at the first
    place, so each key is first equally often if the number of rounds is a multiple of the number of
    keys. The order of the others is random, but the same in every process. See
    google/benchmark#1026 and asv's guide to tuning.
    interleave=False: yield all trials of a key, one at a time, before those of the next key.
    """
    if not interleave:
        yield from ((number, [key]) for key, count in num_trials.items() for number in range(count))
        return
    for number in range(max(num_trials.values(), default=0)):
        keys = [key for key, count in num_trials.items() if number < count]
        # The first job of a round finds the machine as the end of the last round left it, so the
        # jobs take turns at the first place. The seed is the number of the round, so that all ranks
        # shuffle alike.
        first = keys.pop(number % len(keys))
        random.Random(number).shuffle(keys)
        yield number, [first, *keys]
