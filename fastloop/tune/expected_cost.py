"""Expect the costs of jobs from their settings alone, relative to each other, before any trial.

Tuning orders its first trials by these costs if it has no model that predicts the jobs.
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
"""Costs of loaders that usually win, by override, relative to other loaders. Chosen by hand: nearer
to 1 than most gains in the recordings of experiments/tune, so that a trial or two outweigh them."""
COST_OF_ONE_THREAD = 0.8
"""Cost with one torch thread relative to other numbers of threads, chosen in the same way."""
WORKER_S = 0.03
"""Approximate seconds in which a forked worker starts and ends. Chosen by hand, not measured: it
orders trials, and bounds the number of workers in a short budget."""


def expect_cost(
    job: Job, change: Sequence[str], *, waits: bool = False, epoch_s: float = math.inf
) -> float:
    """Expect the cost of a job relative to others, judged only by its loader and its threads.

    change: the overrides of the job. waits: True if samples wait, for example for a disk; then the
    number of workers counts, too. epoch_s: seconds of an epoch without workers; workers that start
    in each epoch prolong it.
    """
    cost = math.prod(EXPECTED_COSTS.get(text, 1.0) for text in change)
    if waits and job.loading.num_workers:
        stay = job.loading.persistent_workers
        cost = divide_waits(cost, job.loading.num_workers, stay, epoch_s)
    return cost * (COST_OF_ONE_THREAD if job.torch_threads == 1 else 1.0)


def divide_waits(cost: float, workers: int, stay: bool, epoch_s: float) -> float:
    """Expect the cost with this number of workers if samples wait rather than compute.

    cost: the cost without workers. stay: True if the workers stay from epoch to epoch. epoch_s:
    seconds of an epoch without workers; workers that start in each epoch prolong it.
    """
    # Each worker waits for its own sample, so the waits overlap.
    return cost / workers + (0.0 if stay else workers * WORKER_S / epoch_s)
