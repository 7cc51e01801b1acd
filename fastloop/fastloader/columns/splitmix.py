"""Pseudo-random numbers of samples: a function of a seed and an index."""

from __future__ import annotations

import numpy as np

from fastloop.core.seeds import mix_seed

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Increment of splitmix64: the odd integer nearest to 2^64 / golden ratio."""


def splitmix64(indices: np.ndarray, seed: int) -> np.ndarray:
    """uint64 pseudo-random numbers: output `index` of splitmix64 (Steele, Lea, Flood 2014) with an
    initial state that is derived from the seed."""
    # The arithmetic is modulo 2^64: numpy would warn of overflow.
    with np.errstate(over="ignore"):
        state = np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        bits = state + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def sample_key(seed: int, epoch: int, index: int) -> int:
    """The key that a sample's columns draw by, in this epoch of a FastLoader with this seed."""
    return int(splitmix64(np.array([index]), mix_seed(seed, epoch))[0])
