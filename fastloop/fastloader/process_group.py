"""A loader's rank among the processes of torch.distributed."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from fastloop.fastloader.batching import sampler_chain

IS_AVAILABLE = dist.is_available()
"""True if torch was built with torch.distributed."""


def is_in_group() -> bool:
    """True if torch.distributed has a group of processes."""
    return IS_AVAILABLE and dist.is_initialized()


def group_size() -> int:
    """The number of processes of the group; 1 without one."""
    return dist.get_world_size() if is_in_group() else 1


def resolve_rank(rank: int | None, world_size: int | None, sampler: Any) -> tuple[int, int]:
    """Choose (rank, world_size): the given numbers, or else the numbers of the process group.

    rank, world_size: both are numbers, or both are None; LoaderSettings refuses a rank without
    world_size. sampler: the user's sampler of indices or batches; None: there is none.

    If the numbers are None, the result is

    - (0, 1), the whole order, if there is no group of several processes;
    - (0, 1) as well if the sampler is or contains a DistributedSampler, which divides the indices
      among the ranks itself;
    - the numbers of the group if there is no sampler, or if it is a tensor, an array, a list, a
      tuple or a range.

    Raises ValueError for any other sampler in a group of several processes, because its indices may
    differ between processes, and unless the rank is an integer from 0 to world_size - 1.
    """
    if rank is not None and world_size is not None:
        are_whole = isinstance(rank, Integral) and isinstance(world_size, Integral)
        if not are_whole or not 0 <= rank < world_size:
            allowed = f"allowed are 0 to world_size - 1, and world_size={world_size!r}"
            raise ValueError(f"rank={rank!r}: {allowed}")
        return int(rank), int(world_size)
    if group_size() == 1:
        return 0, 1
    if any(isinstance(each, DistributedSampler) for each in sampler_chain(sampler)):
        return 0, 1
    if sampler is None or isinstance(sampler, torch.Tensor | np.ndarray | list | tuple | range):
        return dist.get_rank(), dist.get_world_size()
    allowed = "a DistributedSampler, or rank and world_size: 0 and 1 if it shards by itself"
    problem = f"{type(sampler).__name__} in a group of {dist.get_world_size()} processes"
    raise ValueError(f"sampler={problem}: allowed are {allowed}")
