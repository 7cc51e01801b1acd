"""Where does the time of a command go? Times until its first line, first figure and table, and the
share of the time that is timed windows.

Runs `python -m fastloop.run <overrides>` and reads the windows of its results.

    python -m experiments.wall_time.run experiment=quickstart
"""

import json
import subprocess
import sys
import tempfile
from os import environ
from pathlib import Path

from fastloop.core.spans import now_ns, seconds_between

TABLE = "mean (std) of the trials"


def timed_seconds(outputs: Path) -> float:
    """Seconds of all timed windows of the sweeps in the folder."""
    results = [json.loads(path.read_text()) for path in outputs.glob("20*/*/*/result.json")]
    return sum(
        seconds_between(window["start_ns"], window["stop_ns"])
        for result in results
        for trial in result["trials"]
        for window in trial["benchmarks"].values()
    )


def measure(overrides: list[str], outputs: Path) -> dict[str, float]:
    """Seconds from the start of the command to each of its outputs, and seconds of its windows."""
    command = [sys.executable, "-m", "fastloop.run", *overrides]
    begun_ns, at = now_ns(), {}
    with subprocess.Popen(
        command,
        env=environ | {"FASTLOOP_OUTPUTS": str(outputs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seconds = seconds_between(begun_ns, now_ns())
            at.setdefault("first line", seconds)
            if ", from one trial: " in line:
                at.setdefault("first figure", seconds)
            if line.startswith("round "):
                at.setdefault("first round", seconds)
            if line.startswith(TABLE):
                at.setdefault("table", seconds)
    at["end"] = seconds_between(begun_ns, now_ns())
    at["windows"] = timed_seconds(outputs)
    return at


def main() -> None:
    """Print the seconds of one command, and its windows' share of the time until the table."""
    with tempfile.TemporaryDirectory() as folder:
        at = measure(sys.argv[1:], Path(folder))
    for name, seconds in at.items():
        print(f"{name:12} {seconds:7.1f} s")
    if "table" in at:
        print(f"timed        {100 * at['windows'] / at['table']:7.1f} %")


if __name__ == "__main__":
    main()
