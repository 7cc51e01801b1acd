"""A random generator for each sample, for datasets that generate their samples on access."""

from __future__ import annotations

import numpy as np


def sample_generator(seed: int, index: int) -> np.random.Generator:
    """A new generator that depends only on the seed and the sample's index, both of 64 bits."""
    # Philox takes both numbers as its key. torch's generator would keep only 32 bits of a seed, so
    # the numbers of some samples would be the same.
    return np.random.Generator(np.random.Philox(key=np.array([index, seed], np.uint64)))
