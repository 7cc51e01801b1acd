"""Kill the command at random moments and check what is left: see kills.md.

    python experiments/kills.py [kills] [seed]

Prints one line a kill and the count of each outcome; exits with 1 at the first broken promise.
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

from fastloop.files import edges
from fastloop.result import load
from fastloop.trackers.mlflow import MlflowTracker

COMMAND = (
    *("-m", "fastloop.run", "-m", "loader=raw,np_memmap,tensorclass", "dataset=mydataset"),
    *("dataset.count=10000", "trials=3", "epochs=1", "benchmark=traversal", "torch_threads=1"),
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def main() -> None:
    kills, seed = int([*sys.argv, 100][1]), int([*sys.argv, 100, 0][2])
    random.seed(seed)
    # a shell's background job ignores Ctrl-C, and so would what it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        whole_s = run_until(Path(folder) / "whole", None, 0)[1]
        print(f"a whole run takes {whole_s:.1f} s", flush=True)
        for number in range(kills):
            # every third begins with nothing, so that preparing and the first database are hit too
            outputs = Path(folder) / str(number // 3)
            outcome = kill_once(outputs, random.choice(SIGNALS), random.uniform(0, whole_s))
            seen[outcome] += 1
            print(f"{number + 1:4} {outcome}", flush=True)
    print(*(f"{count:4} {outcome}" for outcome, count in sorted(seen.items())), sep="\n")


def kill_once(outputs: Path, sign: signal.Signals, after_s: float) -> str:
    """The outcome in words; raises AssertionError where a promise is broken."""
    shm = set(os.listdir("/dev/shm"))
    kept, _, status = run_until(outputs, sign, after_s)
    while not set(os.listdir("/dev/shm")) <= shm:  # what others use comes and goes
        time.sleep(0.1)
    ended = check_results(outputs, kept)
    check_stores(outputs)
    if sign != signal.SIGKILL:  # nobody could write down how that ended
        check_ends(outputs)
    check_runs(outputs)
    assert status in {0, -sign, 128 + sign}, status
    phase = "preparing or before" if not ended else f"after {'some' if ended < 9 else 'all'} trials"
    return f"{sign.name} {phase}, exit status {status}"


def run_until(
    outputs: Path, sign: signal.Signals | None, after_s: float
) -> tuple[dict[Path, int], float, int]:
    """Trials that were on disk before the kill, seconds, exit status; nothing outlives it."""
    started = time.monotonic()
    environment = os.environ | {"FASTLOOP_OUTPUTS": str(outputs)}
    command = subprocess.Popen(
        [sys.executable, *COMMAND],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(after_s if sign else None)
    kept = trials_on_disk(outputs)
    if sign and command.poll() is None:
        command.send_signal(sign)
    _, said = command.communicate()
    assert "Traceback" not in said, said
    _, alive = psutil.wait_procs(session(command.pid), timeout=10)
    assert not alive, alive
    return kept, time.monotonic() - started, command.returncode


def session(pid: int) -> list[psutil.Process]:
    """Every process that the command has started, at whatever depth."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            pass
    return found


def trials_on_disk(outputs: Path) -> dict[Path, int]:
    """How many trials each result file has."""
    return {path: len(load(path.parent).trials) for path in outputs.glob("20*/*/*/result.json")}


def check_results(outputs: Path, kept: dict[Path, int]) -> int:
    """Trials of the newest sweep; no file has fewer trials than before the kill."""
    now = trials_on_disk(outputs)
    assert all(now[path] >= count for path, count in kept.items()), (kept, now)
    newest = max((path.parent.parent for path in now), default=None)
    return sum(count for path, count in now.items() if path.parent.parent == newest)


def check_stores(outputs: Path) -> None:
    """Every store that a reader would find is whole."""
    for folder in outputs.glob("stores/*"):
        if folder.is_dir() and not folder.name.startswith("."):
            facts = json.loads((folder / "sealed.json").read_text())
            assert all(edges(folder / name) == seen for name, seen in facts["files"].items())


def check_ends(outputs: Path) -> None:
    """Every job of the newest sweep has ended, in its file and in MLflow alike."""
    sweeps = sorted(path for path in outputs.glob("20*/*") if any(path.glob("*/result.json")))
    if not sweeps:
        return
    client = MlflowClient(tracking_uri=f"sqlite:///{outputs}/mlflow.db")
    for path in sweeps[-1].glob("*/result.json"):
        result = load(path.parent)
        assert result.status in {"FINISHED", "KILLED"}, (path, result.status)
        assert client.get_run(result.run_id).info.status == result.status, path


def check_runs(outputs: Path) -> None:
    """The next start closes what the killed command left open; the files say how each job ended."""
    os.environ["FASTLOOP_OUTPUTS"] = str(outputs)
    MlflowTracker(experiment="fastloop").where("")  # what every start does first
    client = MlflowClient(tracking_uri=f"sqlite:///{outputs}/mlflow.db")
    experiment = client.get_experiment_by_name("fastloop")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} <= {"FINISHED", "FAILED", "KILLED"}


if __name__ == "__main__":
    main()
