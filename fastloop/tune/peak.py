"""The peak of a job's memory, observed in its own process while its workers live.

Sampling from outside, as during trials, misses a short epoch: its workers live for a tenth of a
second. Here memory is read as batches are delivered, when it is largest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastloop.core.plan import PreparedData
from fastloop.core.types import Tree
from fastloop.explain.explained_job import count_batches
from fastloop.explain.rung_passes import benchmark_of
from fastloop.processes.resources import MIB, sample
from fastloop.trial.context import start_job
from fastloop.trial.job import Job
from fastloop.trial.window import Consumer

EPOCHS = 2
SAMPLES = 12
"""About the number of readings in an epoch; a reading takes milliseconds for each process."""


def observe_peak_mib(job: Job, prepared: PreparedData) -> float | None:
    """The greatest PSS, in MiB, of this process and its workers in two epochs with steps; None if
    the system does not tell it."""
    context = start_job(job, prepared, 0)
    whole = count_batches(job, prepared)
    count = min(whole, job.batches or whole)
    peaks: list[int] = []
    with context.open_loader() as loader:
        batches = iter(loader.epochs(job.epochs))
        first, deliver = next(batches), context.step_delivery()
        consume, _ = benchmark_of(job).session(context.build_setup(first)).start(deliver)
        # Ends the workers of this epoch, which would count beside the next one's.
        del batches
        for number in range(EPOCHS):
            peaks += _read_during(loader.epochs(number), consume, count)
    return max(peaks) / MIB if peaks else None


def _read_during(batches: Iterable[Tree], consume: Consumer, count: int) -> list[int]:
    """The PSS in bytes at about SAMPLES batches of an epoch and at its last one.

    count: the number of batches of the epoch.
    """
    every, readings = max(1, count // SAMPLES), []
    for number, batch in enumerate(batches, 1):
        consume(batch)
        if number % every == 0 or number == count:
            readings.append(sample(os.getpid()).pss)
    return [each for each in readings if each is not None]
