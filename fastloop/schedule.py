"""In which order trials are run."""

from __future__ import annotations

import random
from collections.abc import Sequence


def rounds(trials: Sequence[int]) -> list[list[int]]:
    """For each round k the places of those that have a trial k, given how many each has.

    The order is random in each round, and each place comes first equally often; it is the same
    order every time. Why: google/benchmark#1026, asv's guide to tuning.
    """
    found = []
    for number in range(max(trials, default=0)):
        taking_part = [place for place, count in enumerate(trials) if number < count]
        first = taking_part.pop(number % len(taking_part))
        random.Random(number).shuffle(taking_part)
        found.append([first, *taking_part])
    return found
