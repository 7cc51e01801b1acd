"""Seeds of epochs and samples, and random numbers that are functions of a seed and an index.

Except for the seed of epoch 0, all are outputs of the generator splitmix64 (Steele, Lea, Flood,
2014), in which each bit of the state affects all bits of the output.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

MASK = (1 << 64) - 1
"""The greatest number of 64 bits; `x & MASK` is x modulo 2^64."""
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, rounded to an odd number. Its multiples modulo 2^64 are spread
evenly and take all values."""
SEED_FACTOR = 0xD1342543DE82EF95
"""An odd factor, which makes states that are far apart of seeds that differ by one."""
Bits = TypeVar("Bits", int, np.ndarray)


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order.

    For epoch 0 this is `seed` itself, and for later epochs `seed` mixed with the epoch's number.
    """
    # If seed and epoch were added, epoch 1 of seed 0 and epoch 0 of seed 1 would have one order.
    return mix_seed(seed, epoch) if epoch else seed


def mix_seed(*numbers: int) -> int:
    """A number of 63 bits that depends on all of these integers and on their order."""
    mixed = 0
    for number in numbers:
        mixed = splitmix64(mixed ^ splitmix64(number & MASK))
    # torch, numpy and random all take 63 bits, a non-negative int64, as they are.
    return mixed >> 1


def splitmix64(state: int, number: int = 0) -> int:
    """The 64-bit output `number`, counted from 0, of a generator that begins with this state.

    fastloader/native/splitmix.h is the same in C.
    """
    return _output((state + (number + 1) * GOLDEN_GAMMA) & MASK)


def random_bits(indices: np.ndarray, seed: int) -> np.ndarray:
    """A pseudo-random uint64 for each index, which depends only on the seed and the index."""
    begin = (seed * SEED_FACTOR + GOLDEN_GAMMA) & MASK
    return _output(indices.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + np.uint64(begin))


def _output(bits: Bits) -> Bits:
    """The output of splitmix64 for these bits of its state, a permutation of 64-bit numbers."""
    # Products of Python's integers need the mask; those of uint64 arrays are modulo 2^64 already.
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def sample_key(seed: int, epoch: int, index: int) -> int:
    """The number on which all random draws for a cropped sample depend, in one epoch.

    seed: the seed of the crops; a FastLoader with this seed draws the same crops. index: the index
    of the sample.
    """
    return int(random_bits(np.array([index]), mix_seed(seed, epoch))[0])
