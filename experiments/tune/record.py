"""Record the times of every configuration of every workload, in interleaved rounds.

python -m experiments.tune.record [seconds] [rounds]

Round 0 is the same-data check. In each other round, one process times all configurations of a
workload in random order, each after a warm-up epoch. An interrupted run continues where it stopped.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from experiments.explain.record import Record, add_record, read_records
from experiments.tune.grid import LAUNCHER, ROUNDS_FILE, Configuration, Grid, load_grid
from experiments.tune.workloads import WORKLOADS, Workload
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Invalid, Tree, Unsupported
from fastloop.trial.job import Job
from fastloop.trial.job_check import check_epoch
from fastloop.trial.job_start import start_job
from fastloop.trial.window import num_repeats, row_counter, time_epochs

ROUNDS = 7
LIMIT_S = 300.0
SHORTEST_S = 0.02
"""A shorter epoch is repeated for this long."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of an epoch of one configuration, and the cost of measuring it."""

    seconds: float
    cost_s: float
    """Seconds with the warm-up epoch and the opening of the loader."""


def main(seconds: float, rounds: int) -> None:
    """Record the missing rounds, until the time is over. A line of the file is a round of a
    workload."""
    start_ns = now_ns()
    done = {(each["workload"], each["round"]) for each in read_records(ROUNDS_FILE)}
    for number in range(rounds):
        for workload in WORKLOADS:
            if (workload.name, number) in done:
                continue
            if seconds_between(start_ns, now_ns()) > seconds:
                return
            grid = passed(workload, load_grid(workload), number)
            record = check_all(grid) if number == 0 else time_all(grid, number)
            add_record(ROUNDS_FILE, {"workload": workload.name, "round": number} | record)
            took = seconds_between(start_ns, now_ns())
            print(f"{took:.0f} s: {workload.name}, round {number}", flush=True)


def passed(workload: Workload, grid: Grid, number: int) -> Grid:
    """The configurations that have passed the same-data check in round 0."""
    records = [each for each in read_records(ROUNDS_FILE) if each["workload"] == workload.name]
    failed = {name for each in records if number for name in each.get("failed", ())}
    return {name: each for name, each in grid.items() if name not in failed}


def seed(number: int) -> random.Random:
    """The random generator for the order of a round."""
    return random.Random(number)


def check_all(grid: Grid) -> Record:
    """Check the data of every configuration, in one process."""
    faults = LAUNCHER.call(check_each, grid, timeout_s=2 * LIMIT_S)
    return {"failed": {name: fault for name, fault in faults.items() if fault}}


def time_all(grid: Grid, number: int) -> Record:
    """Time all configurations in one process, in random order."""
    names = seed(number).sample([*grid], len(grid))
    shuffled = {name: grid[name] for name in names}
    return _record(LAUNCHER.call(time_each, shuffled, number, timeout_s=2 * LIMIT_S))


def check_each(grid: Mapping[str, Configuration]) -> dict[str, str]:
    """Name of a configuration -> the reason why it does not deliver the dataset; empty if it
    does."""
    return {name: _find_fault(each) for name, each in grid.items()}


def _find_fault(each: Configuration) -> str:
    context = start_job(each.job, each.prepared, 0)
    try:
        with context.open_loader() as loader:
            check_epoch(context, loader.epochs, each.job.epochs)
    except (Invalid, Unsupported) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def time_each(grid: Mapping[str, Configuration], number: int) -> dict[str, Timing]:
    """Time all configurations, one after the other."""
    threads, timings = torch.get_num_threads(), {}
    for name, each in grid.items():
        # The configuration before may have changed it.
        torch.set_num_threads(threads)
        timings[name] = time_one(each.job, each.prepared, number)
    return timings


def time_one(job: Job, prepared: PreparedData, number: int) -> Timing:
    """Time an epoch after a warm-up epoch, with the code of a trial."""
    warnings.filterwarnings("ignore", "This DataLoader will create")
    start_ns = now_ns()
    context = start_job(job, prepared, number)
    with context.open_loader() as loader:
        first = drain_first(loader.epochs(job.epochs))
        session = next(iter(job.benchmark.values())).session(context.build_setup(first))
        consume, _ = session.start(context.step_delivery())
        # The first step allocates memory.
        consume(first)
        arguments = context.device, row_counter(first)
        seconds = time_epochs(loader.epochs, consume, 1, *arguments).seconds
        repeats = num_repeats(seconds, SHORTEST_S)
        if repeats > 1:
            seconds = time_epochs(loader.epochs, consume, repeats, *arguments).seconds / repeats
    return Timing(seconds=seconds, cost_s=seconds_between(start_ns, now_ns()))


def drain_first(batches: Iterable[Tree]) -> Tree:
    """The first of the batches, returned after all have been delivered."""
    iterator = iter(batches)
    first = next(iterator)
    for _ in iterator:
        pass
    return first


def _record(timings: Mapping[str, Timing]) -> Record:
    return {
        "seconds": {name: each.seconds for name, each in timings.items()},
        "cost_s": {name: each.cost_s for name, each in timings.items()},
    }


if __name__ == "__main__":
    # Processes find the functions that they are sent by module name, which must not be __main__.
    from experiments.tune.record import main as run

    arguments = sys.argv[1:]
    run(float(arguments[0]) if arguments else 1e9, int(arguments[1]) if arguments[1:] else ROUNDS)
