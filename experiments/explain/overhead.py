"""How much longer a script takes under `fastloop attach`: see README.md.

    python -m experiments.explain.overhead [folder] [pairs]

Continues where an earlier run in the same folder has stopped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from experiments.explain.record import Record, add_record, read_records
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.stats import ratio_or_range

FOLDER = "outputs/explain"
SCRIPT = Path(__file__).with_name("attached_script.py")
SAMPLES = {0: 40_000, 2: 40_000}
"""By the number of workers."""
PAIRS = 8
ENDS = ("", "_whole")
PLAIN, ATTACHED = [sys.executable], [sys.executable, "-m", "fastloop", "attach"]


def main(folder: Path, pairs: int) -> None:
    path = folder / "overhead.jsonl"
    for number in range(pairs):
        for workers in SAMPLES:
            done = [each for each in read_records(path) if each["workers"] == workers]
            if len(done) <= number:
                add_record(path, time_pair(workers, number))
    for line in overhead_lines(read_records(path)):
        print(line)


def time_pair(workers: int, number: int) -> Record:
    """Seconds of the script, and of the whole command, plain and attached, by turns."""
    record: Record = {"workers": workers}
    ways = {"plain": PLAIN, "attached": ATTACHED}
    for way in list(ways)[:: -1 if number % 2 else 1]:
        record[way], record[f"{way}_whole"] = _time([*ways[way], str(SCRIPT)], workers)
    return record


def overhead_lines(records: list[Record]) -> list[str]:
    """A row of Markdown for each number of workers."""
    head = "| workers | pairs | plain s | attached / plain | whole command |"
    rows = [head, "|---|---|---|---|---|"]
    for workers in SAMPLES:
        own = [each for each in records if each["workers"] == workers]
        cells = [
            _ratio([r[f"attached{end}"] for r in own], [r[f"plain{end}"] for r in own])
            for end in ENDS
        ]
        plain_s = median([each["plain"] for each in own])
        rows.append(f"| {workers} | {len(own)} | {plain_s:.2f} | {' | '.join(cells)} |")
    return rows


def _ratio(attached_s: list[float], plain_s: list[float]) -> str:
    found = ratio_or_range(attached_s, plain_s)
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]" if found else "-"


def _time(command: list[str], workers: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        start_ns = now_ns()
        process = subprocess.run(
            [*command, str(workers), str(SAMPLES[workers])],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        whole_s = seconds_between(start_ns, now_ns())
    match = re.search(r"^seconds=(\S+)$", process.stdout, re.MULTILINE)
    assert match is not None, process.stdout
    return float(match[1]), whole_s


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute(),
        int(arguments[1]) if len(arguments) > 1 else PAIRS,
    )
