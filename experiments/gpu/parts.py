"""The parts of the GPU run. run.py starts each part in its own process, so that a failure of one
leaves the figures of the others.

    python -m experiments.gpu.parts NAME DEVICE SECONDS FILE [--small]
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = 25


@dataclass(frozen=True, kw_only=True)
class PartRun:
    """The settings of a part, and the file for its figures."""

    device: str
    seconds: float
    file: Path
    small: bool

    def keep(self, rows: list[Figures], **more: Any) -> None:
        """Write the figures so far, so that they survive an early end of the part."""
        content = {"rows": [flatten(row) for row in rows], **more}
        partial_file = self.file.with_suffix(".partial")
        partial_file.write_text(json.dumps(content, default=str))
        partial_file.replace(self.file)


def flatten(row: Any) -> Figures:
    """A row as plain values: an interval or a ratio becomes a field for each of its numbers."""
    values = row if isinstance(row, Mapping) else _fields(row)
    flat: Figures = {}
    for name, value in values.items():
        if is_dataclass(value):
            flat |= {f"{name}_{key}": number for key, number in _fields(value).items()}
        elif isinstance(value, tuple) and len(value) == 2:
            flat |= {f"{name}_low": value[0], f"{name}_high": value[1]}
        elif isinstance(value, float) and not math.isfinite(value):
            flat[name] = str(value)
        else:
            flat[name] = value
    return flat


def _fields(row: Any) -> Figures:
    return {field.name: getattr(row, field.name) for field in fields(row)}


def machine(run: PartRun) -> None:
    """Record the machine and the versions of its libraries."""
    import torch

    from fastloop.core.machine import describe_machine

    description = describe_machine()
    versions = description.pop("versions")
    run.keep(
        [{"name": name, "is": value} for name, value in versions.items() if value],
        machine=description,
        device=str(run.device),
        cuda=torch.version.cuda,
    )


def tests(run: PartRun) -> None:
    """Run the tests that are marked gpu."""
    from experiments.gpu.pytest_part import run_tests

    run_tests(REPOSITORY, run.keep)


def hidden_copies(run: PartRun) -> None:
    """Measure the share of the copies' time in which a step ran."""
    from experiments.gpu.headlines import measure_hidden_shares
    from experiments.gpu.jobs import part_jobs

    measure_hidden_shares(part_jobs("hidden", run.device, run.small), run.seconds, run.keep)


def bandwidth(run: PartRun) -> None:
    """Measure the share of the pinned copy's bandwidth that a pipeline reaches."""
    import torch

    from experiments.gpu.headlines import measure_bandwidths
    from experiments.gpu.jobs import part_jobs

    jobs = part_jobs("bandwidth", run.device, run.small)
    measure_bandwidths(jobs, torch.device(run.device), run.seconds, run.keep)


def stall(run: PartRun) -> None:
    """Measure how long steps wait for batches."""
    from experiments.gpu.jobs import part_jobs
    from experiments.lib.time_budget import measure_in_time

    jobs = part_jobs("stall", run.device, run.small)
    measure_in_time(jobs, run.seconds, run.keep, passes_first=True)


def in_time(part: str, run: PartRun) -> None:
    """A part that consists of measured jobs only."""
    from experiments.gpu.jobs import part_jobs
    from experiments.lib.time_budget import measure_in_time

    measure_in_time(part_jobs(part, run.device, run.small), run.seconds, run.keep)


def executions(run: PartRun) -> None:
    """Measure each execution of two models."""
    from experiments.gpu.jobs import part_jobs
    from experiments.lib.time_budget import measure_in_time

    jobs = part_jobs("executions", run.device, run.small)
    if run.small:
        jobs = {
            name: job
            for name, job in jobs.items()
            if name.startswith("toynet") and not name.endswith("compiled")
        }
    measure_in_time(jobs, run.seconds, lambda rows: run.keep(relate_to_eager(rows)))


def relate_to_eager(rows: list[Figures]) -> list[Figures]:
    """The rows with their rates relative to eager execution of the same model and benchmark, sorted
    by model and benchmark."""
    rates = {row["name"]: row.get("samples_per_s") for row in rows}
    for row in rows:
        row.pop("times_the_first", None)
        eager = rates[f"{row['name'].rpartition(', ')[0]}, eager"]
        if eager and "samples_per_s" in row:
            row["times_eager"] = row["samples_per_s"] / eager
    return sorted(rows, key=lambda row: row["name"].rpartition(", ")[0])


def placements(run: PartRun) -> None:
    """Measure each placement, as experiments/placements does."""
    import torch

    from experiments.placements import run as experiment

    if run.small:
        experiment.TREES = {"5 small": (5, 2)}
    _repeat(run, partial(experiment.measure, torch.device(run.device)))


def copies(run: PartRun) -> None:
    """Measure the conversions, as experiments/copies does."""
    from experiments.copies import run as experiment

    if run.small:
        experiment.SIZES = {"4 KiB": 1 << 10}
    _repeat(run, lambda num_rounds: (experiment.measure(num_rounds), []))


def _repeat(run: PartRun, measure: Callable[[int], tuple[list[Any], list[str]]]) -> None:
    """Measure one round, then as many rounds as the first one shows there is time for."""
    from fastloop.core.spans import now_ns, seconds_between

    def measure_and_keep(num_rounds: int) -> None:
        rows, refusals = measure(num_rounds)
        failed = any("unsupported" not in refusal for refusal in refusals)
        run.keep(rows, left_out=refusals, rounds=num_rounds, failed=failed)

    start_ns = now_ns()
    measure_and_keep(1)
    took_s = seconds_between(start_ns, now_ns())
    num_rounds = 1 if run.small else min(ROUNDS, int(0.8 * (run.seconds - took_s) / took_s))
    if num_rounds > 1:
        measure_and_keep(num_rounds)


PARTS: dict[str, tuple[Callable[[PartRun], None], float]] = {
    "machine": (machine, 1),
    "hidden": (hidden_copies, 4),
    "bandwidth": (bandwidth, 4),
    "stall": (stall, 8),
    "pipeline_steps": (partial(in_time, "pipeline_steps"), 6),
    "tests": (tests, 16),
    "pinning": (partial(in_time, "pinning"), 5),
    "placements": (placements, 5),
    "copies": (copies, 1),
    "executions": (executions, 12),
}
"""Name of a part -> its function, and its share of the time, in the order in which they run."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    arguments = vars(parser.parse_args())
    PARTS[arguments.pop("name")][0](PartRun(**arguments))
