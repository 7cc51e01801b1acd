"""`order=sequential`: the samples by ascending index, as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from fastloop.core.types import option

PIECE = 1 << 20
"""Number of indices in a piece."""


@option
class SequentialOrder:
    """The order in which the samples are stored: 0, 1, 2, … in every epoch."""

    complete: ClassVar[bool] = True

    def length(self, num_samples: int) -> int:
        """Number of indices in an epoch: the number of samples."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:  # noqa: ARG002
        """Yield int64 indices, PIECE at a time, so that memory does not grow with num_samples."""
        for start in range(0, num_samples, PIECE):
            yield torch.arange(start, min(start + PIECE, num_samples))
