"""Observe the memory peaks of some configurations of every workload, each in its own process.

python -m experiments.tune.peaks
"""

from __future__ import annotations

import random

from experiments.explain.record import Record, add_record, read_records
from experiments.tune.grid import LAUNCHER, PEAKS_FILE, Grid, load_grid
from experiments.tune.workloads import WORKLOADS, YOURS
from fastloop.tune.peak_memory import observe_peak_mib

COUNT = 12
"""Number of configurations of a workload, including the user's own."""
LIMIT_S = 300.0


def main() -> None:
    """Observe the workloads that are missing."""
    done = {each["workload"] for each in read_records(PEAKS_FILE)}
    for workload in WORKLOADS:
        if workload.name not in done:
            peaks = observe(load_grid(workload))
            add_record(PEAKS_FILE, {"workload": workload.name, "peak_pss_mib": peaks})
            print(workload.name, flush=True)


def observe(grid: Grid) -> Record:
    """Peak of the PSS in MiB, as tuning observes it, of configurations drawn at random."""
    others = [name for name in grid if name != YOURS]
    peaks = {}
    for name in [YOURS, *random.Random(0).sample(others, COUNT - 1)]:
        job, prepared = grid[name].job, grid[name].prepared
        peaks[name] = LAUNCHER.call(observe_peak_mib, job, prepared, timeout_s=LIMIT_S)
    return peaks


if __name__ == "__main__":
    # Processes find the functions that they are sent by module name, which must not be __main__.
    from experiments.tune.peaks import main as run

    run()
