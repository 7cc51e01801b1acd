"""What does the harness itself cost? The timed window against a bare `for` loop, interleaved.

Both run the same DataLoader (60,000 x 28x28 float32, batch 64, shuffled) with the same placement.
One epoch each, in turn, first one then the other; ratios are paired, the interval is bootstrapped.

    python experiments/harness.py [pairs]
"""

import sys
import time

import torch
from torch.utils.data import TensorDataset

from fastloop.orders.random import Random
from fastloop.placements.direct import Direct
from fastloop.stats import median, ratio
from fastloop.torch_loader import torch_epochs
from fastloop.types import Plan
from fastloop.window import timed

CPU = torch.device("cpu")


def bare_seconds(loader, place) -> float:
    start = time.perf_counter_ns()
    for batch in loader:
        place(batch)
    return (time.perf_counter_ns() - start) / 1e9


def main(pairs: int) -> None:
    samples = TensorDataset(torch.rand(60_000, 28, 28), torch.randint(10, (60_000,)))
    place = Direct(non_blocking=False).to(CPU)
    harness, bare = [], []
    with torch_epochs(samples, Plan(order=Random(), seed=0, batch_size=64)) as epochs:
        arms = {
            "harness": lambda: harness.append(timed(epochs, place, 1, CPU).seconds),
            "bare": lambda: bare.append(bare_seconds(epochs(0), place)),
        }
        for arm in arms.values():
            arm()
        harness.clear(), bare.clear()
        for pair in range(pairs):
            for name in sorted(arms, reverse=bool(pair % 2)):
                arms[name]()
    found = ratio(harness, bare)
    print(
        f"harness {median(harness):.4f} s, bare loop {median(bare):.4f} s an epoch, {pairs} pairs"
    )
    if found:  # five pairs or more
        print(f"harness / bare: {found.estimate:.4f} [{found.low:.4f}, {found.high:.4f}]")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
