"""Which part of an epoch makes a loader slower or faster in training than in traversal?

From the result files of experiment=seed_traversal and experiment=seed_training: the time of an
epoch that is only delivered, of the same steps on batches that lie in memory already (measured
beside each trial), and of training; what training takes beyond its steps is what the loader costs
it. For two loaders named, the difference of every part, paired by round, with a 95 % interval.

    python experiments/seed_parts.py <folder of traversal> <folder of training> [loader loader]
"""

import sys
from pathlib import Path

import numpy as np

from fastloop import stats
from fastloop.arguments import results_below
from fastloop.result import Result, measured

PARTS = ("traversal", "steps", "training", "training - steps")


def parts(traversal: Result, training: Result) -> dict[str, np.ndarray]:
    """Milliseconds an epoch, by round."""
    delivered = [1e3 * one.seconds / one.epochs for one in measured(traversal, "traversal")]
    trained = measured(training, "training")
    steps = [1e3 * one.samples / one.epochs / one.limit_samples_per_s for one in trained]
    whole = np.array([1e3 * one.seconds / one.epochs for one in trained])
    found = (np.array(delivered), np.array(steps), whole, whole - np.array(steps))
    return dict(zip(PARTS, found, strict=True))


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Median and its 95 % interval by a plain bootstrap; values may be negative."""
    picks = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return stats.median(list(values)), float(low), float(high)


def main(traversal: str, training: str, *pair: str) -> None:
    one, other = (
        {result.loader: result for result in results_below(Path(folder), "folder")}
        for folder in (traversal, training)
    )
    found = {loader: parts(one[loader], other[loader]) for loader in one}
    print(f"{'ms an epoch':<20}" + "".join(f"{part:>18}" for part in PARTS) + f"{'waits':>10}")
    for loader, each in found.items():
        cells = "".join(f"{stats.median(list(each[part])):>18.1f}" for part in PARTS)
        print(
            f"{loader:<20}{cells}{1e3 * sum(other[loader].attribution['training'].wait_s):>10.1f}"
        )
    if pair:
        print(f"\n{pair[0]} less {pair[1]}, ms an epoch, paired by round [95 %]")
        for part in PARTS:
            middle, low, high = median_interval(found[pair[0]][part] - found[pair[1]][part])
            print(f"{part:<20}{middle:>10.1f} [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
