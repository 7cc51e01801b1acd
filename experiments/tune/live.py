"""Tune every workload live, and confirm each gain by fresh trials.

python -m experiments.tune.live [budget in seconds] [seconds]

Runs `fastloop tune` as a user does, and then the recommended configuration and the user's own in
interleaved rounds, each trial in its own process. No workload begins after `seconds`; an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from experiments.explain.record import Record, add_record, read_records
from experiments.tune.grid import FOLDER, LAUNCHER
from experiments.tune.workloads import WORKLOADS, YOURS, Workload
from fastloop.config.compose import compose_job
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.stats import Ratio
from fastloop.trial.job import Job
from fastloop.trial.timed_trial import run_trial

LIVE_FILE = FOLDER / "live.jsonl"
BUDGET_S = 90.0
CONFIRMING_S, FEWEST_CONFIRMING, MOST_CONFIRMING = 30.0, 5, 9
"""No round begins after CONFIRMING_S, except the first FEWEST_CONFIRMING; there are at most
MOST_CONFIRMING."""
LIMIT_S = 300.0
CLAIM = re.compile(r"([\d.]+) \[([\d.]+), ([\d.]+)\] times as fast as yours, in \d+ fresh rounds")
COMMAND = re.compile(r"^run: +python -m fastloop\.run (.+)$", re.MULTILINE)
Row = tuple[str, ...]


def main(budget_s: float, seconds: float) -> None:
    """Tune the workloads that have not been tuned, until the time is over."""
    start_ns = now_ns()
    done = {each["workload"] for each in read_records(LIVE_FILE)}
    for workload in WORKLOADS:
        if workload.name in done or seconds_between(start_ns, now_ns()) > seconds:
            continue
        record = {"workload": workload.name, "budget_s": budget_s} | tune_one(workload, budget_s)
        add_record(LIVE_FILE, record)
        shown = record.get("failed") or record["verdict"]
        print(f"{seconds_between(start_ns, now_ns()):.0f} s: {workload.name}: {shown}", flush=True)


def tune_one(workload: Workload, budget_s: float) -> Record:
    """Tune a workload. Returns the claimed gain and the times of fresh trials, or the reason why
    tuning has failed."""
    own = live_overrides(workload)
    command = [sys.executable, "-m", "fastloop", "tune", *own, f"budget={budget_s:g}s"]
    start_ns = now_ns()
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S + 2 * budget_s, check=False
    )
    took_s = seconds_between(start_ns, now_ns())
    if process.returncode:
        return {"took_s": took_s, "failed": process.stderr.strip()}
    tuned = recommended(process.stdout)
    jobs = {YOURS: compose_job(*own), "tuned": compose_job(*tuned)}
    claim = read_claim(process.stdout)
    return {
        "took_s": took_s,
        "verdict": verdict_of(process.stdout),
        "change": [each for each in tuned if each not in own],
        "claimed": claim,
        "confirmed_s": time_in_turn(jobs) if claim else {},
    }


def live_overrides(workload: Workload) -> tuple[str, ...]:
    """The overrides of the user's own job for `fastloop tune`. Its epochs are those of a sweep,
    which are longer than those of the recordings."""
    named = {each.partition("=")[0] for each in workload.overrides}
    benchmark = () if "benchmark" in named else ("benchmark=traversal",)
    return (*benchmark, *workload.overrides, *workload.yours, "tracker=none")


def read_claim(text: str) -> list[float] | None:
    """The gain that tuning prints, with its interval; None if it claims none."""
    found = CLAIM.search(" ".join(text.split()))
    return [float(each) for each in found.groups()] if found else None


def recommended(text: str) -> list[str]:
    """The overrides of the command line that tuning prints."""
    found = COMMAND.search(text)
    if found is None:
        raise ValueError(f"fastloop tune has printed no command line: {text}")
    return shlex.split(found.group(1))


def verdict_of(text: str) -> str:
    """The paragraph with the verdict, as one line."""
    return " ".join(text.split("\n\n")[1].split())


def time_in_turn(jobs: Mapping[str, Job]) -> dict[str, list[float]]:
    """Seconds of an epoch of each job in every round, each trial in its own process."""
    prepared = {name: LAUNCHER.call(job.data_request.prepare) for name, job in jobs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    start_ns = now_ns()
    for number in range(MOST_CONFIRMING):
        is_late = seconds_between(start_ns, now_ns()) > CONFIRMING_S
        if number >= FEWEST_CONFIRMING and is_late:
            break
        for name in random.Random(number).sample([*jobs], len(jobs)):
            arguments = jobs[name], prepared[name], number, now_ns()
            trial = LAUNCHER.call(run_trial, *arguments, timeout_s=LIMIT_S)
            (measured,) = trial.benchmarks.values()
            seconds[name].append(measured.seconds / measured.epochs)
    return seconds


def live_table(records: Sequence[Record]) -> list[Row]:
    """A row for each workload: the claimed gain, the gain in fresh trials, and whether they
    agree."""
    heads = ("workload", "budget", "took", "tuned to", "claimed", "confirmed", "agreed")
    rows: list[Row] = [heads]
    for each in records:
        times = f"{each['budget_s']:.0f} s", f"{each['took_s']:.0f} s"
        if reason := each.get("failed"):
            rows.append((each["workload"], *times, f"failed: {reason}", "", "", ""))
            continue
        claimed, timed = each["claimed"], each["confirmed_s"]
        confirmed = stats.ratio(timed[YOURS], timed["tuned"]) if claimed else None
        bounds = (confirmed.estimate, confirmed.low, confirmed.high) if confirmed else None
        figures = show(claimed), show(bounds), agreement(claimed, confirmed)
        rows.append((each["workload"], *times, " ".join(each["change"]), *figures))
    return rows


def show(bounds: Sequence[float] | None) -> str:
    """A ratio with its interval."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*bounds) if bounds else "none"


def agreement(claimed: Sequence[float] | None, confirmed: Ratio | None) -> str:
    """Words for whether fresh trials confirm a gain: faster beyond noise, and by as much as was
    claimed."""
    if claimed is None or confirmed is None:
        return "nothing claimed"
    _, low, high = claimed
    if confirmed.low <= 1:
        return "no"
    if confirmed.high < low:
        return "faster, by less"
    return "faster, by more" if confirmed.low > high else "yes"


if __name__ == "__main__":
    # Processes find the functions that they are sent by module name, which must not be __main__.
    from experiments.tune.live import main as run

    arguments = [float(each) for each in sys.argv[1:]]
    run(arguments[0] if arguments else BUDGET_S, arguments[1] if arguments[1:] else 1e9)
