"""FastLoader, and DataLoader with its best settings, over a workload."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from experiments.peers.workloads import EncodedFiles, Workload


@dataclass(frozen=True)
class RowsByIndexTensor(Dataset):
    """A dataset of whole batches, indexed by a tensor; index_select is torch's fastest gather."""

    leaves: tuple[torch.Tensor, ...]

    def __getitem__(self, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(leaf.index_select(0, indices) for leaf in self.leaves)


@dataclass(frozen=True)
class IndexTensorSampler(Sampler):
    """A sampler of batches: a permutation, split into tensors of indices."""

    count: int
    batch_size: int

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randperm(self.count).split(self.batch_size))


def fastloader(workload: Workload | EncodedFiles) -> Iterable[Any]:
    """FastLoader over the workload's source."""
    # The import is inside of the function, because its modules count as FastLoader's memory.
    from fastloop import FastLoader

    return FastLoader(workload.source(), workload.batch_size, shuffle=True, seed=0)


def dataloader(workload: Workload) -> Iterable[Any]:
    """DataLoader with its best settings for rows in memory: no workers, one tensor of indices per
    batch."""
    sampler = IndexTensorSampler(workload.count, workload.batch_size)
    return DataLoader(RowsByIndexTensor(workload.source()), batch_size=None, sampler=sampler)


LOADERS: dict[str, Callable[[Workload], Iterable[Any]]] = {
    "FastLoader": fastloader,
    "DataLoader": dataloader,
}


@cache
def warm_loader(loader: str, workload: Any) -> Any:
    """The loader that a process uses in all rounds, so that it is warm in later ones."""
    return LOADERS[loader](workload)
