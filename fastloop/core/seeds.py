"""Seeds that are made of several numbers, by splitmix64, which scrambles every bit of them."""

from __future__ import annotations

MASK = (1 << 64) - 1
INCREMENT = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, rounded to an odd number: its multiples modulo 2^64 are spread
evenly and take all values."""


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order: `seed` itself for epoch 0, mixed with the epoch's number
    later."""
    # With the sum of both, epoch 1 of seed 0 and epoch 0 of seed 1 would have the same order.
    return mix_seed(seed, epoch) if epoch else seed


def mix_seed(*numbers: int) -> int:
    """A number of 63 bits that depends on all of these integers and on their sequence."""
    mixed = 0
    for number in numbers:
        mixed = scramble(mixed ^ scramble(number & MASK))
    # 63 bits: torch, numpy and random all take a non-negative int64 as it is
    return mixed >> 1


def scramble(number: int) -> int:
    """The next output of splitmix64 (Steele, Lea, Flood, 2014): a permutation of 64-bit numbers."""
    number = (number + INCREMENT) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)
