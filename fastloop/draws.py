"""Random numbers that belong to one sample, whoever asks for it and when."""

from __future__ import annotations

import numpy as np


def generator_of(seed: int, index: int) -> np.random.Generator:
    """A new generator for that sample; both numbers fit into 64 bits."""
    # Philox takes both as its key. torch's generator keeps 32 bits of a seed: streams would repeat.
    return np.random.Generator(np.random.Philox(key=np.array([index, seed], np.uint64)))
