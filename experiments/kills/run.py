"""Kill the command at random moments and check what is left: see README.md.

    python -m experiments.kills.run [kills] [seed] [overrides]

Prints one line per kill and the count of each outcome; exits with 1 at the first failed check.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from mlflow.tracking import MlflowClient

from fastloop.core.fingerprints import edge_digest
from fastloop.core.result_io import load
from fastloop.options.tracker.mlflow import MlflowTracker

COMMAND = (
    "-m",
    "fastloop.run",
    "-m",
    "loader=raw,np_memmap,tensorclass",
    "dataset=mydataset",
    "dataset.count=10000",
    "trials=3",
    "epochs=1",
    "benchmark=traversal",
    "torch_threads=1",
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def main() -> None:
    kills, seed = int([*sys.argv, 100][1]), int([*sys.argv, 100, 0][2])
    random.seed(seed)
    # A background job of a shell ignores Ctrl-C, and so would the commands that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        whole_s = run_until(Path(folder) / "whole", None, 0)[1]
        print(f"a whole run takes {whole_s:.1f} s", flush=True)
        for number in range(kills):
            # Every third kill has an empty folder, so that preparing and the first database are
            # interrupted too.
            outputs = Path(folder) / str(number // 3)
            outcome = kill_once(outputs, random.choice(SIGNALS), random.uniform(0, whole_s))
            outcomes[outcome] += 1
            print(f"{number + 1:4} {outcome}", flush=True)
    print(*(f"{count:4} {outcome}" for outcome, count in sorted(outcomes.items())), sep="\n")


def kill_once(outputs: Path, sign: signal.Signals, after_s: float) -> str:
    """The outcome as a line of text; raises AssertionError if a check fails."""
    shm = set(os.listdir("/dev/shm"))
    trials_before, _, status = run_until(outputs, sign, after_s)
    # Other programs use /dev/shm too.
    while not set(os.listdir("/dev/shm")) <= shm:
        time.sleep(0.1)
    num_trials = check_results(outputs, trials_before)
    check_stores(outputs)
    # After SIGKILL the command can't record how its jobs ended.
    if sign != signal.SIGKILL:
        check_ends(outputs)
    check_runs(outputs)
    assert status in {0, -sign, 128 + sign}, status
    phase = f"after {'some' if num_trials < 9 else 'all'} trials"
    phase = phase if num_trials else "preparing or before"
    return f"{sign.name} {phase}, exit status {status}"


def run_until(
    outputs: Path, sign: signal.Signals | None, after_s: float
) -> tuple[dict[Path, int], float, int]:
    """Run the command until it is killed. Returns the number of trials that were on disk before,
    seconds, and the exit status.

    Raises AssertionError if a process outlives the command.
    """
    start = time.monotonic()
    environment = os.environ | {"FASTLOOP_OUTPUTS": str(outputs)}
    command = subprocess.Popen(
        [sys.executable, *COMMAND, *sys.argv[3:]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(after_s if sign else None)
    trials = trials_on_disk(outputs)
    if sign and command.poll() is None:
        command.send_signal(sign)
    _, errors = command.communicate()
    assert "Traceback" not in errors, errors
    _, alive = psutil.wait_procs(session(command.pid), timeout=10)
    assert not alive, alive
    return trials, time.monotonic() - start, command.returncode


def session(pid: int) -> list[psutil.Process]:
    """The processes of the command's session, at any depth below it."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def trials_on_disk(outputs: Path) -> dict[Path, int]:
    """The number of trials in each result file."""
    return {path: len(load(path.parent).trials) for path in outputs.glob("20*/*/*/result.json")}


def check_results(outputs: Path, before: dict[Path, int]) -> int:
    """The number of trials of the newest sweep. Raises AssertionError if a file has fewer trials
    than before the kill."""
    now = trials_on_disk(outputs)
    assert all(now[path] >= count for path, count in before.items()), (before, now)
    newest = max((path.parent.parent for path in now), default=None)
    return sum(count for path, count in now.items() if path.parent.parent == newest)


def check_stores(outputs: Path) -> None:
    """Raise AssertionError if a store that a reader would find is incomplete."""
    for folder in outputs.glob("stores/*"):
        if folder.is_dir() and not folder.name.startswith("."):
            facts = json.loads((folder / "sealed.json").read_text())
            assert all(edge_digest(folder / name) == seal for name, seal in facts["files"].items())


def check_ends(outputs: Path) -> None:
    """Raise AssertionError if a job of the newest sweep has not ended, in its file or in MLflow."""
    sweeps = sorted(path for path in outputs.glob("20*/*") if any(path.glob("*/result.json")))
    if not sweeps:
        return
    client = MlflowClient(tracking_uri=f"sqlite:///{outputs}/mlflow.db")
    for path in sweeps[-1].glob("*/result.json"):
        result = load(path.parent)
        assert result.status in {"FINISHED", "KILLED"}, (path, result.status)
        assert client.get_run(result.run_id).info.status == result.status, path


def check_runs(outputs: Path) -> None:
    """Raise AssertionError if a run is still open after the next start has cleaned up."""
    os.environ["FASTLOOP_OUTPUTS"] = str(outputs)
    # The tracker closes abandoned runs when it starts.
    MlflowTracker(experiment="fastloop").where("")
    client = MlflowClient(tracking_uri=f"sqlite:///{outputs}/mlflow.db")
    experiment = client.get_experiment_by_name("fastloop")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} <= {"FINISHED", "FAILED", "KILLED"}


if __name__ == "__main__":
    main()
