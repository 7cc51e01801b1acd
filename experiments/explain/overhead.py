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

from experiments.explain.markdown import Rows, markdown
from experiments.explain.record import Record, add_record, read_records
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.stats import ratio_or_range

FOLDER, FILE = "outputs/explain", "overhead.jsonl"
SCRIPT = Path(__file__).with_name("attached_script.py")
CASES = {
    "images": ("images", "0", "20000"),
    "images, 2 workers": ("images", "2", "20000"),
    "ready batches": ("batches", "0", "64000"),
}
"""The arguments of the script."""
PAIRS = 7
PLAIN, ATTACHED = [sys.executable], [sys.executable, "-m", "fastloop", "attach"]
COLUMNS = {
    "seconds": "script",
    "loop": "its loop alone",
    "cpu": "CPU time of its processes",
    "whole": "whole command",
}
"""What is timed, by the heading of its column."""


def main(folder: Path, pairs: int) -> None:
    path = folder / FILE
    for number in range(-1, pairs):  # the first one warms up
        for case in CASES:
            done = [each["number"] for each in read_records(path) if each["case"] == case]
            if number not in done:
                add_record(path, time_pair(case, number))
    print(markdown(overhead_table(read_records(path))))


def time_pair(case: str, number: int) -> Record:
    """Seconds of the script, plain and attached; the one that comes first changes."""
    ways = {"plain": PLAIN, "attached": ATTACHED}
    order = list(ways)[:: -1 if number % 2 else 1]
    times = {way: _time([*ways[way], str(SCRIPT), *CASES[case]]) for way in order}
    return {"case": case, "number": number, **times}


def overhead_table(records: list[Record]) -> Rows:
    """A row for each case: the median of attached / plain with its 95 % interval."""
    rows = [("loop", "pairs", "plain s", *COLUMNS.values())]
    for case in CASES:
        pairs = [each for each in records if each["case"] == case and each["number"] >= 0]
        if pairs:
            plain_s = median(each["plain"]["seconds"] for each in pairs)
            cells = [_ratio(pairs, name) for name in COLUMNS]
            rows.append((case, str(len(pairs)), f"{plain_s:.2f}", *cells))
    return rows


def _ratio(pairs: list[Record], name: str) -> str:
    attached_s, plain_s = ([each[way][name] for each in pairs] for way in ("attached", "plain"))
    found = ratio_or_range(attached_s, plain_s)
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]" if found else "-"


def _time(command: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        start_ns = now_ns()
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        whole_s = seconds_between(start_ns, now_ns())
    printed = re.findall(r"^(\w+)=([\d.]+)$", process.stdout, re.MULTILINE)
    return {name: float(value) for name, value in printed} | {"whole": whole_s}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute(),
        int(arguments[1]) if len(arguments) > 1 else PAIRS,
    )
