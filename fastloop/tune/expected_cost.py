"""Estimate the costs of jobs, relative to each other, from their settings alone.

If tuning has no model that predicts the jobs, it orders its first trials by these costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fastloop.trial.job import Job

EXPECTED_COSTS: Mapping[str, float] = {
    "loader=fastloop": 0.5,
    "loader=numpy_loop": 0.6,
    "loader=python_loop": 0.7,
}
"""Override -> cost of its loader, relative to other loaders. These three loaders usually win. The
costs are chosen by hand. Most gains in the recordings of experiments/tune are further from 1, so
one or two trials outweigh these costs."""
COST_OF_ONE_THREAD = 0.8
"""Cost with one torch thread, relative to other numbers of threads; also chosen by hand."""
WORKER_S = 0.03
"""Approximate seconds to start and end a forked worker, chosen by hand. The value orders trials,
and bounds the number of workers if the budget is short."""


def expect_cost(
    job: Job, change: Sequence[str], *, waits: bool = False, epoch_s: float = math.inf
) -> float:
    """Estimate the cost of a job, relative to others, from its loader and its threads.

    change: the overrides of the job. waits: True if samples wait, for example for a disk; then the
    number of workers counts, too. epoch_s: seconds of an epoch without workers, with which the time
    to start workers is compared; infinite: this time does not count.
    """
    cost = math.prod(EXPECTED_COSTS.get(text, 1.0) for text in change)
    if waits and job.loading.num_workers:
        stay = job.loading.persistent_workers
        cost = divide_waits(cost, job.loading.num_workers, stay, epoch_s)
    return cost * (COST_OF_ONE_THREAD if job.torch_threads == 1 else 1.0)


def divide_waits(cost: float, workers: int, stay: bool, epoch_s: float) -> float:
    """Estimate the cost with this number of workers, if samples wait rather than compute.

    cost: the cost without workers. stay: False if the workers start in each epoch, and so prolong
    it. epoch_s: seconds of an epoch without workers.
    """
    # Each worker waits for its own sample, so the waits of several workers overlap.
    return cost / workers + (0.0 if stay else workers * WORKER_S / epoch_s)
