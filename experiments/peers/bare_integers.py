"""The workload `integers` and nothing else: 300,000 integers in batches of 300.

In a traversal each batch is also placed on the device, which takes as long as making it. Here
nothing is done with the batches, and every loop has its own process; see README.md.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from experiments.peers.lines import Line, figure, ratio_by_round, times
from experiments.peers.loaders import IndexTensorSampler
from experiments.peers.processes import measure_in_rounds, processes
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between

COUNT, BATCH_SIZE, EPOCHS = 300_000, 300, 20


@dataclass(frozen=True)
class NumbersByIndexTensor(Dataset):
    """A dataset of integers that is indexed by a tensor once per batch."""

    numbers: torch.Tensor

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        return self.numbers.index_select(0, indices)


@dataclass(frozen=True)
class PermutedSlices:
    """A numpy loop: slices of a permuted array, as tensors."""

    numbers: np.ndarray

    def __iter__(self) -> Iterator[torch.Tensor]:
        permuted = self.numbers[np.random.permutation(len(self.numbers))]
        return map(torch.from_numpy, permuted.reshape(-1, BATCH_SIZE))


def fastloader(numbers: torch.Tensor) -> Iterable[torch.Tensor]:
    """FastLoader over a tensor of numbers."""
    from fastloop import FastLoader

    return FastLoader(numbers, BATCH_SIZE, shuffle=True, seed=0)


def dataloader(numbers: torch.Tensor) -> Iterable[torch.Tensor]:
    """DataLoader with its best settings over a tensor of numbers."""
    sampler = IndexTensorSampler(len(numbers), BATCH_SIZE)
    return DataLoader(NumbersByIndexTensor(numbers), batch_size=None, sampler=sampler)


def numpy_loop(numbers: torch.Tensor) -> Iterable[torch.Tensor]:
    """The numpy loop over the numbers."""
    return PermutedSlices(numbers.numpy())


LOOPS: dict[str, Callable[[torch.Tensor], Iterable[torch.Tensor]]] = {
    "FastLoader": fastloader,
    "numpy loop": numpy_loop,
    "DataLoader": dataloader,
}


@cache
def warm_loop(loop: str, count: int) -> Iterable[torch.Tensor]:
    """The loop that a process uses in all rounds, so that it is warm in later ones."""
    return LOOPS[loop](torch.arange(count))


def epoch_ms(loop: str, count: int) -> float:
    """Milliseconds of an epoch of this loop."""
    batches, start = warm_loop(loop, count), now_ns()
    for _ in range(EPOCHS):
        for _ in batches:
            pass
    return 1e3 * seconds_between(start, now_ns()) / EPOCHS


def integers(num_rounds: int, count: int = COUNT) -> list[Line]:
    """The table's lines on the workload `integers`."""
    with processes(list(LOOPS)) as call:
        calls = {loop: partial(call[loop], epoch_ms, loop, count) for loop in LOOPS}
        took_ms = measure_in_rounds(num_rounds, calls)
    ratios = {
        loop: ratio_by_round(took_ms[loop], took_ms["FastLoader"])
        for loop in ("numpy loop", "DataLoader")
    }
    return [
        *(Line(f"an epoch of {loop}", figure(took_ms[loop], "ms")) for loop in LOOPS),
        _bar("the numpy loop's time over FastLoader's", ratios["numpy loop"], 1.0),
        _bar("DataLoader's time over FastLoader's", ratios["DataLoader"], 4.0),
    ]


def _bar(label: str, ratio: stats.Ratio, least: float) -> Line:
    return Line(label, times(ratio), f"at least {least:g}", ratio.estimate >= least)
