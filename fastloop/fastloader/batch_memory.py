"""Memory of the batches that Python makes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._C import _from_dlpack  # pyright: ignore[reportAttributeAccessIssue]

from fastloop.fastloader.columns.engine import load_core

MIN_POOLED_BYTES = 1 << 20
"""The C library gives larger memory back to the system at once, and each page that is touched for
the first time costs as much as writing it. Less is taken from it."""
FREE_BYTES = 128 << 20
"""Memory that is kept for later batches."""


def empty_rows(num_rows: int, row_nbytes: int, is_pinned: bool) -> torch.Tensor:
    """(num_rows, row_nbytes) uint8, not set; of the core's memory, which is used again, if it is
    large."""
    nbytes = num_rows * row_nbytes
    if is_pinned or nbytes < MIN_POOLED_BYTES or load_core() is None:
        size = num_rows, row_nbytes
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
    return _from_dlpack(_open_pool().take(nbytes)).view(num_rows, row_nbytes)


@cache
def _open_pool() -> Any:
    core = load_core()
    assert core is not None
    return core.Pool(FREE_BYTES)
