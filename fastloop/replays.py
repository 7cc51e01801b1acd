"""The same steps on batches that are at hand: what training could be if loading took no time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fastloop import stats
from fastloop.network import unsynchronized
from fastloop.protocols import Benchmark
from fastloop.ranks import gathered
from fastloop.trees import tree_leaves
from fastloop.types import Setup, Tree
from fastloop.window import Consumer, replayed

REPLAYED_STEPS, REPLAY_S, FEWEST_STEPS = 300, 2.0, 3
"""So many steps are replayed, or as many as take so long where that is less."""
HELD_BATCHES = 32
STEP_ROUNDS = 5


def num_steps(step_s: float) -> int:
    """How many are replayed of steps that take so long."""
    return max(FEWEST_STEPS, min(REPLAYED_STEPS, int(REPLAY_S / step_s)))


def held_batches(batches: Iterable[Tree], place: Consumer, steps: int = HELD_BATCHES) -> list[Tree]:
    """Whole batches on the device, for so many steps; each rank has as many."""
    held = [place(batch) for batch in islice(batches, min(HELD_BATCHES, steps))]
    size = len(tree_leaves(held[0])[0])
    held = [batch for batch in held if len(tree_leaves(batch)[0]) == size]
    return held[: min(gathered(len(held)))]


def replay_limit(benchmark: Benchmark, setup: Setup, held: list[Tree]) -> float:
    """Samples a second of the same steps on batches that are on the device already."""
    consume, _ = benchmark.start(lambda batch: batch, setup)
    warm = replayed(held, consume, len(held), setup.device)
    steps = num_steps(max(gathered(warm.seconds)) / len(held))
    size = len(tree_leaves(held[0])[0])
    return size * steps / replayed(held, consume, steps, setup.device).seconds


def step_seconds(benchmark: Benchmark, setup: Setup, held: list[Tree]) -> tuple[float, float]:
    """Medians of a step on such batches: as it is, and with each rank's gradients its own."""
    consume, _ = benchmark.start(lambda batch: batch, setup)
    synced, own = [], []
    for _ in range(STEP_ROUNDS):  # interleaved: a busy moment hits both alike
        synced.append(replayed(held, consume, len(held), setup.device).seconds / len(held))
        with unsynchronized(setup):
            own.append(replayed(held, consume, len(held), setup.device).seconds / len(held))
    return stats.median(synced), stats.median(own)
