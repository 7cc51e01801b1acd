"""The cost of the harness itself: the timed window against a bare `for` loop.

Both run the same DataLoader (60,000 x 28x28 float32, batch 64, shuffled) with the same placement.
They take turns of one epoch, and each is first equally often. Ratios are paired, with a
bootstrapped interval.

    python -m experiments.harness.run [pairs]
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import TensorDataset

from fastloop.core.interleave import rounds
from fastloop.core.plan import Plan
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.stats import median, ratio
from fastloop.data.torch_epochs import torch_epochs
from fastloop.options.order.random import RandomOrder
from fastloop.options.placement.direct import DirectPlacement
from fastloop.trial.window import row_counter, time_epochs

CPU = torch.device("cpu")


def bare_seconds(loader: Iterable[Any], place: Callable[[Any], Any]) -> float:
    """Seconds of an epoch of a bare loop that places each batch."""
    start = now_ns()
    for batch in loader:
        place(batch)
    return seconds_between(start, now_ns())


def main(pairs: int) -> None:
    """Time both loops in turn, and print their medians and their ratio."""
    samples = TensorDataset(torch.rand(60_000, 28, 28), torch.randint(10, (60_000,)))
    place = DirectPlacement(non_blocking=False).to(CPU)
    seconds: dict[str, list[float]] = {"harness": [], "bare": []}
    with torch_epochs(samples, Plan(order=RandomOrder(), seed=0)) as epochs:
        size_of = row_counter(next(iter(epochs(0))))
        arms = {
            "harness": lambda: time_epochs(epochs, place, 1, CPU, size_of).seconds,
            "bare": lambda: bare_seconds(epochs(0), place),
        }
        for arm in arms.values():
            # Warm-up.
            arm()
        for _, names in rounds(dict.fromkeys(arms, pairs)):
            for name in names:
                seconds[name].append(arms[name]())
    harness, bare = seconds["harness"], seconds["bare"]
    print(
        f"harness {median(harness):.4f} s, bare loop {median(bare):.4f} s an epoch, {pairs} pairs"
    )
    # The ratio needs at least five pairs.
    if quotient := ratio(harness, bare):
        bounds = f"[{quotient.low:.4f}, {quotient.high:.4f}]"
        print(f"harness / bare: {quotient.estimate:.4f} {bounds}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
