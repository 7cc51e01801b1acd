"""Tune workloads within a memory limit, and read the peak of every process that is started.

python -m experiments.tune.memory_limit [seconds]

The limit is the median forecast of a workload's space, or the need of the user's own job if that is
greater. `fastloop tune` runs as a user runs it, except that its launcher reads the memory of the
processes that it starts, and of their workers, all the time. No workload begins after `seconds`; an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.explain.judge import request_of
from experiments.explain.record import Record, add_record, read_records
from experiments.tune.grid import FOLDER
from experiments.tune.live import LIMIT_S, Row, live_overrides
from experiments.tune.watched_launcher import PEAKS_FILE
from experiments.tune.workloads import WORKLOADS, Workload
from fastloop.config.compose import compose_job
from fastloop.config.tune_space import read_space
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.tune.candidates import find_tune_candidates
from fastloop.tune.peak_memory import forecast_trial_mib
from fastloop.tune.pilot import PilotLimits, run_pilot, time_first_pass

LIMITS_FILE = FOLDER / "memory_limit.jsonl"
NAMES = ("mapped rows", "bytes to floats", "trained model", "JPEG with augmentation", "small rows")
BUDGET_S = 60.0
SPACE = "loader=raw,fastloop,np_memmap,preload num_workers=0,1,2,4 device_prefetch=0,2"
WORKERS = (1, 2, 4)
ROOM = 1.05
"""The greatest factor between the forecasts of two pilots for the user's own job."""
LAUNCHER = "launcher._target_=experiments.tune.watched_launcher.WatchedLauncher"
FILES = re.compile(r"^files: +(.+)$", re.MULTILINE)


def main(seconds: float) -> None:
    """Tune the workloads that have not been tuned, until the time is over, and print the table."""
    start_ns = now_ns()
    done = {each["workload"] for each in read_records(LIMITS_FILE)}
    workloads = {workload.name: workload for workload in WORKLOADS}
    for workload in [workloads[name] for name in NAMES]:
        if workload.name in done or seconds_between(start_ns, now_ns()) > seconds:
            continue
        add_record(LIMITS_FILE, {"workload": workload.name} | tune_within(workload))
        print(f"{seconds_between(start_ns, now_ns()):.0f} s: {workload.name}", flush=True)
    print(*limit_table(read_records(LIMITS_FILE)), sep="\n")


def tune_within(workload: Workload) -> Record:
    """Tune a workload within the limit. Returns the configurations that ran and that were left out,
    and the peaks of all processes.

    Raises CalledProcessError if tuning fails.
    """
    own = live_overrides(workload)
    forecasts = forecast_space(own)
    limit_mib = math.ceil(max(stats.median(forecasts), ROOM * forecasts[0]))
    settings = f"budget={BUDGET_S:g}s", f"space={SPACE}", f"memory_limit_mib={limit_mib}"
    command = [sys.executable, "-m", "fastloop", "tune", *own, LAUNCHER, *settings]
    FOLDER.mkdir(parents=True, exist_ok=True)
    PEAKS_FILE.unlink(missing_ok=True)
    process = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
    )
    found = FILES.search(process.stdout)
    assert found, process.stdout
    left_out = json.loads((Path(found.group(1)) / "tune.json").read_text())["left_out"]
    return {
        "limit_mib": limit_mib,
        "forecast_mib": forecasts,
        "left_out": sum(count for reason, count in left_out.items() if "of memory" in reason),
        "peaks": read_records(PEAKS_FILE),
    }


def forecast_space(own: Sequence[str]) -> list[float]:
    """Memory forecasts for trials of all configurations of the space, the user's own first."""
    request = request_of(own)
    limits = PilotLimits(seconds=0.0, memory_mib=math.inf)
    memory = run_pilot(time_first_pass(request, request.job), WORKERS, limits).memory
    assert memory, "memory can't be observed here"
    space = read_space(SPACE, [])
    found = find_tune_candidates(request.job, own, space, lambda changed: compose_job(*changed))
    jobs = [request.job, *(each.job for each in found.found)]
    return [forecast_trial_mib(job, memory) for job in jobs]


def limit_table(records: Sequence[Record]) -> list[Row]:
    """A row for each workload: the configurations left out, those that ran, and how near their
    peaks came to the limit."""
    heads = ("workload", "forecasts, MiB", "limit, MiB", "left out", "trials", "other processes")
    rows: list[Row] = [(*heads, "above the limit", "greatest peak / limit")]
    for each in records:
        forecasts, limit_mib, peaks = each["forecast_mib"], each["limit_mib"], each["peaks"]
        trials = sum(peak["function"] == "run_trial" for peak in peaks)
        above = sum(peak["peak_mib"] > limit_mib for peak in peaks)
        greatest = max(peak["peak_mib"] for peak in peaks) / limit_mib
        row = (
            each["workload"],
            f"{min(forecasts):.0f} to {max(forecasts):.0f}",
            f"{limit_mib}",
            f"{each['left_out']} of {len(forecasts)}",
            f"{trials}",
            f"{len(peaks) - trials}",
            f"{above}",
            f"{greatest:.2f}",
        )
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1e9)
