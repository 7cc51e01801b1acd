"""Rows, conversions and windows by numpy and torch, if the native core can't make them. The bits
are the same."""

from __future__ import annotations

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view


def take_rows(memory: np.ndarray, indices: np.ndarray, out: np.ndarray) -> None:
    """Copy the rows at int64 `indices`, which are within bounds, to `out`."""
    # mode="clip", as the default mode writes every batch to a temporary copy first.
    memory.take(indices, axis=0, out=out, mode="clip")


def convert_rows(
    rows: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor, result: torch.Tensor
) -> None:
    """Write rows * factor + offset to `result`, of one number or one for each channel.

    Computed in the factor's dtype. Product and sum are rounded one after the other.
    """
    is_computed_there = result.dtype == factor.dtype
    floats = result if is_computed_there else torch.empty_like(result, dtype=factor.dtype)
    # Not in one operation with the next: torch would make a temporary copy.
    floats.copy_(rows)
    if len(factor) > 1:
        shape = len(factor), *(1 for _ in result.shape[2:])
        floats.mul_(factor.view(shape)).add_(offset.view(shape))
    elif factor != 1 or offset != 0:
        # Without a factor and an offset nothing is computed: adding 0 would change -0.0.
        floats.mul_(factor).add_(offset)
    if not is_computed_there:
        result.copy_(floats)


def cut_windows(tokens: np.ndarray, starts: np.ndarray, result: torch.Tensor) -> None:
    """Write the windows of tokens that begin at `starts` to the rows of `result`, converted."""
    result.copy_(torch.from_numpy(sliding_window_view(tokens, result.shape[1])[starts]))
