"""Explain jobs on real data, follow the advice, and measure its gain again: see README.md.

    python -m experiments.explain.real [folder] [root]

root: the folder with FashionMNIST/raw, which is downloaded if it is missing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from experiments.explain.judge import carry_out, judge_job, request_of
from experiments.explain.markdown import Rows, markdown, percent
from experiments.explain.record import Record, add_record, read_records
from experiments.explain.run import FOLDER
from fastloop.core.types import JobFailed

FILE = "real.jsonl"
SETTINGS = ("benchmark=training", "tracker=none", "trials=3", "try=3")
JOBS = {
    "digits": ("dataset=digits",),
    "digits, 2 workers": ("dataset=digits", "num_workers=2"),
    "Fashion-MNIST": ("dataset=fashion_mnist",),
    "Fashion-MNIST, 2 workers": ("dataset=fashion_mnist", "num_workers=2"),
    "photographs, 64 x 64": ("dataset=photos", "dataset.count=600", "dataset.size=[64,64]"),
    "photographs, 2 workers": (
        "dataset=photos",
        "dataset.count=600",
        "dataset.size=[64,64]",
        "num_workers=2",
    ),
    "tokens, a small transformer": (
        "dataset=tokens",
        "dataset.num_tokens=50000",
        "dataset.block_size=64",
        "model=transformer",
        "batch_size=16",
    ),
}


def main(folder: Path, root: str | None) -> None:
    os.environ["FASTLOOP_OUTPUTS"] = str(folder / "work" / "real")
    done = {each["name"] for each in read_records(folder / FILE)}
    for name, overrides in JOBS.items():
        if name in done:
            continue
        where = (f"dataset.root={root}",) if root and "Fashion" in name else ()
        found = follow(("loader=raw", *overrides, *where, *SETTINGS))
        add_record(folder / FILE, {"name": name} | found)
        print(name, flush=True)
    print(markdown(real_table(read_records(folder / FILE))))


def follow(overrides: tuple[str, ...]) -> Record:
    """The explanation of a job, and its best change measured in further rounds."""
    request = request_of(overrides)
    try:
        judgement = judge_job(request)
        best = judgement.content["best"]
        rows = carry_out(request, judgement, [best["change"]]) if best else []
    except JobFailed as failure:
        return {"failure": str(failure)}
    return {"explanation": judgement.content, "verdict_s": judgement.seconds, "followed": rows}


def real_table(records: list[Record]) -> Rows:
    """A row for each job: verdict, advice, predicted gain and realised gain."""
    rows = [("job", "verdict", "waits", "advice", "gain when tried", "when followed", "seconds")]
    for record in records:
        if "failure" in record:
            rows.append((record["name"], record["failure"], *[""] * 5))
            continue
        said, best = record["explanation"], record["explanation"]["best"]
        wait = percent(said["ladder"]["wait_share"]["value"])
        tried = percent(best["realised_gain"]["value"]) if best else ""
        gains = [1 - each["realised_ratio"]["estimate"] for each in record["followed"]]
        gain = percent(gains[0]) if gains else ""
        advice = best["change"] if best else "none"
        took = f"{record['verdict_s']:.0f}"
        rows.append((record["name"], said["verdict"]["word"], wait, advice, tried, gain, took))
    return rows


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute(),
        arguments[1] if len(arguments) > 1 else None,
    )
