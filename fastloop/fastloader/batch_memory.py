"""Memory of batches, reused once nothing refers to its batch any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C import _from_dlpack  # pyright: ignore[reportAttributeAccessIssue]

from fastloop.fastloader.load_native_core import load_core

MIN_POOLED_BYTES = 1 << 20
"""Minimum size of a batch in the pool's memory, in bytes. The C library gives memory of this size
back to the system at once, and each page that is touched for the first time costs as much as
writing it."""
MAX_FREE_BYTES = 128 << 20
"""Maximum free memory that is kept for later batches, in bytes."""


def open_pool() -> Any:
    """The native core's pool of batch memory and idle threads; several epochs may share it.

    The core has to exist. When the pool ends, memory without references goes back to the system.
    """
    core = load_core()
    assert core is not None
    return core.Pool(MAX_FREE_BYTES)


def _pool_or_none() -> Any:
    return None if load_core() is None else open_pool()


@dataclass(frozen=True)
class BatchMemory:
    """Memory for the batches that Python makes of one source; unused memory is freed with it."""

    pool: Any = field(default_factory=_pool_or_none, repr=False)
    """The native core's pool; None without the core."""

    def __reduce__(self) -> tuple[type[BatchMemory], tuple[()]]:
        """Pickle nothing: another process has its own memory."""
        return BatchMemory, ()

    def empty_rows(self, num_rows: int, row_nbytes: int, is_pinned: bool) -> torch.Tensor:
        """An uninitialised (num_rows, row_nbytes) uint8 tensor, from the pool if it is large."""
        nbytes = num_rows * row_nbytes
        if is_pinned or nbytes < MIN_POOLED_BYTES or self.pool is None:
            size = num_rows, row_nbytes
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
        return _from_dlpack(self.pool.take(nbytes)).view(num_rows, row_nbytes)
