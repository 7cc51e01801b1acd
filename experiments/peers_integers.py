"""E without anything around it: 300,000 integers in batches of 300 that nothing is done with.

    python experiments/peers_integers.py [rounds]

In a traversal each batch is also placed, which takes as long as making it. Here every loop is in a
process of its own and only iterated over; see peers.md.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import peers
import torch
from peers_parts import IndexTensors
from torch.utils.data import DataLoader, Dataset

from fastloop.spans import now_ns, seconds_between

COUNT, BATCH_SIZE, EPOCHS = 300_000, 300, 20


@dataclass(frozen=True)
class Selected(Dataset):
    """Batches of numbers by a tensor of indices."""

    numbers: torch.Tensor

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        return self.numbers.index_select(0, indices)


@dataclass(frozen=True)
class NumpyLoop:
    """Seed 004's loop, its slices handed to torch."""

    numbers: np.ndarray

    def __iter__(self) -> Iterator[torch.Tensor]:
        permuted = self.numbers[np.random.permutation(len(self.numbers))]
        return map(torch.from_numpy, permuted.reshape(-1, BATCH_SIZE))


def fastloader(numbers: torch.Tensor) -> Iterable[torch.Tensor]:
    from fastloop import FastLoader

    return FastLoader(numbers, BATCH_SIZE, shuffle=True)


def dataloader(numbers: torch.Tensor) -> Iterable[torch.Tensor]:
    sampler = IndexTensors(len(numbers), BATCH_SIZE)
    return DataLoader(Selected(numbers), batch_size=None, sampler=sampler)


LOOPS: dict[str, Callable[[torch.Tensor], Iterable[torch.Tensor]]] = {
    "FastLoader": fastloader,
    "numpy loop": lambda numbers: NumpyLoop(numbers.numpy()),
    "DataLoader": dataloader,
}


@cache
def made(loop: str, count: int) -> Iterable[torch.Tensor]:
    """One of the process, so that later rounds find it warm."""
    return LOOPS[loop](torch.arange(count))


def epoch_ms(loop: str, count: int) -> float:
    batches, start = made(loop, count), now_ns()
    for _ in range(EPOCHS):
        for _ in batches:
            pass
    return 1e3 * seconds_between(start, now_ns()) / EPOCHS


def integers(number: int, count: int) -> list[peers.Line]:
    with peers.processes(list(LOOPS)) as call:
        took = peers.in_rounds(
            number, {loop: partial(call[loop], epoch_ms, loop, count) for loop in LOOPS}
        )
    loop, best = (
        peers.against(took[other], took["FastLoader"]) for other in ("numpy loop", "DataLoader")
    )
    return [
        *(peers.Line(f"an epoch of {name}", peers.figure(took[name], "ms")) for name in LOOPS),
        _times("the numpy loop's time by FastLoader's", loop, 1.0),
        _times("DataLoader's time by FastLoader's", best, 4.0),
    ]


def _times(what: str, found: peers.stats.Ratio, least: float) -> peers.Line:
    return peers.Line(what, peers.times(found), f"at least {least:g}", found.estimate >= least)


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else peers.ROUNDS
    print(peers.table(integers(rounds, COUNT)))
