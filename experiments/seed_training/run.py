"""Parts of an epoch: which of them makes a loader slower or faster in training than in traversal?

Reads the result files of experiment=seed_traversal and experiment=seed_training. Prints for each
loader the time of an epoch that is only delivered, of the same steps on batches in memory (measured
next to each trial), and of training. The time of training beyond its steps is the loader's cost.
For two named loaders it also prints the difference of every part, paired by round, with its 95 %
interval.

    python -m experiments.seed_training.run <traversal folder> <training folder> [loader loader]
"""

import sys
from pathlib import Path

import numpy as np

from fastloop.core import stats
from fastloop.core.result import Result, measurements
from fastloop.core.result_io import load_results

PARTS = ("traversal", "steps", "training", "training - steps")


def epoch_parts(traversal: Result, training: Result) -> dict[str, np.ndarray]:
    """Milliseconds of an epoch in each round."""
    traversals = measurements(traversal, "traversal")
    trainings = measurements(training, "training")
    delivery = np.array([1e3 * trial.seconds / trial.epochs for trial in traversals])
    steps = np.array(
        [1e3 * trial.samples / trial.epochs / trial.limit_samples_per_s for trial in trainings]
    )
    whole = np.array([1e3 * trial.seconds / trial.epochs for trial in trainings])
    return dict(zip(PARTS, (delivery, steps, whole, whole - steps), strict=True))


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The median and its 95 % interval by a plain bootstrap, which allows negative values."""
    picks = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return stats.median(list(values)), float(low), float(high)


def main(traversal_folder: str, training_folder: str, *pair: str) -> None:
    traversals, trainings = (
        {result.loader: result for result in load_results(Path(folder), "folder")}
        for folder in (traversal_folder, training_folder)
    )
    parts = {loader: epoch_parts(traversals[loader], trainings[loader]) for loader in traversals}
    print(f"{'ms an epoch':<20}" + "".join(f"{part:>18}" for part in PARTS) + f"{'waits':>10}")
    for loader, by_part in parts.items():
        cells = "".join(f"{stats.median(list(by_part[part])):>18.1f}" for part in PARTS)
        waits_ms = 1e3 * sum(trainings[loader].attribution["training"].wait_s)
        print(f"{loader:<20}{cells}{waits_ms:>10.1f}")
    if pair:
        print(f"\n{pair[0]} less {pair[1]}, ms an epoch, paired by round [95 %]")
        for part in PARTS:
            middle, low, high = median_interval(parts[pair[0]][part] - parts[pair[1]][part])
            print(f"{part:<20}{middle:>10.1f} [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
