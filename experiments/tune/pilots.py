"""The pilot's predictions for every configuration before it runs: its seconds, and its memory peak.

python -m experiments.tune.pilots [seconds]
"""

from __future__ import annotations

import sys

from experiments.explain.judge import request_of
from experiments.explain.record import Record, add_record, read_records
from experiments.tune.grid import PILOTS_FILE, Grid, load_grid
from experiments.tune.workloads import WORKLOADS, YOURS, Workload, overrides_of
from fastloop.core.spans import now_ns, seconds_between
from fastloop.tune.peak_memory import forecast_peak_mib
from fastloop.tune.pilot import run_pilot, time_first_pass


def main(seconds: float) -> None:
    """Run the pilots that are missing, until the time is over."""
    start_ns = now_ns()
    done = {each["workload"] for each in read_records(PILOTS_FILE)}
    for workload in WORKLOADS:
        if workload.name in done or seconds_between(start_ns, now_ns()) > seconds:
            continue
        add_record(
            PILOTS_FILE, {"workload": workload.name} | run_one(workload, load_grid(workload))
        )
        print(f"{seconds_between(start_ns, now_ns()):.0f} s: {workload.name}", flush=True)


def run_one(workload: Workload, grid: Grid) -> Record:
    """The predictions for a grid, and the seconds that the pilot took."""
    start_ns = now_ns()
    present = grid[YOURS].job
    workers = sorted({each.job.loading.num_workers for each in grid.values()})
    request = request_of(overrides_of(workload, workload.yours))
    pilot = run_pilot(time_first_pass(request, present), workers)
    seconds = seconds_between(start_ns, now_ns())
    memory = pilot.memory
    return {
        "pilot_s": seconds,
        "predicted_s": {name: pilot.predict(each.job) for name, each in grid.items()},
        "forecast_mib": {
            name: forecast_peak_mib(each.job, memory) if memory else None
            for name, each in grid.items()
        },
    }


if __name__ == "__main__":
    # Processes find the functions that they are sent by module name, which must not be __main__.
    from experiments.tune.pilots import main as run

    run(float(sys.argv[1]) if len(sys.argv) > 1 else 1e9)
