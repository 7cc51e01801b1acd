"""How much longer does a script take under `fastloop attach`? See README.md.

    python -m experiments.explain.overhead [folder] [pairs]

An interrupted run continues if it is given the same folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.explain.markdown import Rows, markdown
from experiments.explain.record import Record, add_record, read_records
from experiments.explain.turns import time_command, time_pair
from fastloop.core.stats import ratio_or_range

FOLDER, FILE = "outputs/explain", "overhead_turns.jsonl"
CASES = {
    "images": ("images", "0", "8000"),
    "images, 2 workers": ("images", "2", "8000"),
    "ready batches": ("batches", "0", "16000"),
}
"""Name of a case -> arguments of the script."""
PAIRS, COMMANDS = 12, 3
"""Number of pairs of processes in each case, and number of whole commands, which show the time that
attach needs after the script."""
HEADING = (
    "loop",
    "pairs",
    "script, s",
    "script",
    "CPU time of its processes",
    "an epoch",
    "CPU time of an epoch",
    "start, CPU ms more",
    "command after the script, s",
)


def main(folder: Path, pairs: int) -> None:
    path = folder / FILE
    # The first pair is a warm-up.
    for number in range(-1, pairs):
        for case, arguments in CASES.items():
            done = [each["number"] for each in read_records(path) if each["case"] == case]
            if number not in done:
                record = {"case": case, "number": number, **time_pair(arguments, number)}
                if 0 <= number < COMMANDS:
                    record["command"] = time_command(arguments)
                add_record(path, record)
    print(markdown(overhead_table(read_records(path))))


def overhead_table(records: list[Record]) -> Rows:
    """A row for each case. Ratios are attached / plain, with their 95 % intervals over the
    pairs."""
    rows: list[Sequence[str]] = [HEADING]
    for case in CASES:
        pairs = [each for each in records if each["case"] == case and each["number"] >= 0]
        if pairs:
            rows.append((case, str(len(pairs)), *_figures(pairs)))
    return rows


def _figures(pairs: list[Record]) -> list[str]:
    more_s = [each["attached"]["start_cpu"] - each["plain"]["start_cpu"] for each in pairs]
    rest_s = [each["command"] - each["attached"]["seconds"] for each in pairs if "command" in each]
    return [
        f"{median(each['plain']['seconds'] for each in pairs):.2f}",
        *(_ratio([_of_script(each, name) for each in pairs]) for name in ("seconds", "cpu")),
        *(_ratio([_of_epoch(each, name) for each in pairs]) for name in ("epochs", "epochs_cpu")),
        f"{1e3 * median(more_s):.0f}",
        f"{median(rest_s):.2f}" if rest_s else "-",
    ]


def _of_script(pair: Record, name: str) -> float:
    return pair["attached"][name] / pair["plain"][name]


def _of_epoch(pair: Record, name: str) -> float:
    """The median ratio of the epochs that ran in turn."""
    turns = zip(pair["attached"][name], pair["plain"][name], strict=True)
    return median(attached / plain for attached, plain in turns)


def _ratio(ratios: list[float]) -> str:
    found = ratio_or_range(ratios, [1.0] * len(ratios))
    return f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]" if found else "-"


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute(),
        int(arguments[1]) if len(arguments) > 1 else PAIRS,
    )
