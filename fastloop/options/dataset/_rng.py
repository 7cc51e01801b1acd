"""Random numbers that depend only on the seed and the sample's index."""

from __future__ import annotations

import numpy as np


def sample_generator(seed: int, index: int) -> np.random.Generator:
    """A new generator for the sample; seed and index have to fit into 64 bits."""
    # Philox takes both numbers as its key. torch's generator would keep only 32 bits of a seed, so
    # the numbers of some samples would be the same.
    return np.random.Generator(np.random.Philox(key=np.array([index, seed], np.uint64)))
