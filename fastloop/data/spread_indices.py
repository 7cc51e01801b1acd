"""Choose samples that are spread evenly over a dataset, so that checking them stands for checking
all samples."""

from __future__ import annotations

import numpy as np


def spread_indices(count: int, number: int) -> list[int]:
    """At most `number` different indices from 0 to count - 1, spread evenly, in rising order."""
    return sorted(set(np.linspace(0, count - 1, number).round().astype(int).tolist()))
