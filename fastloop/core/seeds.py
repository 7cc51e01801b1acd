"""Seeds that are made of several numbers, by splitmix64, which scrambles every bit of them."""

from __future__ import annotations

MASK = (1 << 64) - 1
INCREMENT = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, and odd: multiples of it are spread evenly."""


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order: `seed` itself for epoch 0, mixed with the number of any other.

    The sum of both would give seed 0's epoch 1 and seed 1's epoch 0 the same order.
    """
    return mix_seed(seed, epoch) if epoch else seed


def mix_seed(*numbers: int) -> int:
    """A number of 63 bits that depends on all of these integers and on their sequence."""
    mixed = 0
    for number in numbers:
        mixed = scramble(mixed ^ scramble(number & MASK))
    return mixed >> 1  # torch, numpy and random take it as it is


def scramble(number: int) -> int:
    """splitmix64 (Steele, Lea, Flood, 2014), a permutation of the numbers of 64 bits."""
    number = (number + INCREMENT) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)
