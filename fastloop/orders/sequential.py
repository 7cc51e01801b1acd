"""`order=sequential`: as stored."""

from __future__ import annotations

import torch

from fastloop.types import option


@option
class Sequential:
    """0, 1, 2, … in every epoch."""

    def indices(self, num_samples: int, seed: int, epoch: int) -> torch.Tensor:  # noqa: ARG002
        """int64 range of num_samples."""
        return torch.arange(num_samples)
