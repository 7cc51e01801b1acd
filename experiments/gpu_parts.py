"""The parts of `make gpu`; gpu.py runs each in a process of its own, so that one that fails leaves
the others their figures.

    python experiments/gpu_parts.py NAME DEVICE SECONDS FILE [--small]
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
REPOSITORY = Path(__file__).resolve().parents[1]
ROUNDS = 25


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a part is told."""

    device: str
    seconds: float
    file: Path
    small: bool

    def keep(self, rows: list[Figures], **more: Any) -> None:
        """Write what is known so far: a part that is ended early leaves that."""
        found = {"rows": [flat(row) for row in rows], **more}
        beside = self.file.with_suffix(".partial")
        beside.write_text(json.dumps(found, default=str))
        beside.replace(self.file)


def flat(row: Any) -> Figures:
    """A row of plain values; an interval or a ratio is a field for each of its numbers."""
    values = row if isinstance(row, Mapping) else _fields(row)
    found: Figures = {}
    for name, value in values.items():
        if is_dataclass(value):
            found |= {f"{name}_{key}": one for key, one in _fields(value).items()}
        elif isinstance(value, tuple) and len(value) == 2:
            found |= {f"{name}_low": value[0], f"{name}_high": value[1]}
        elif isinstance(value, float) and not math.isfinite(value):
            found[name] = str(value)
        else:
            found[name] = value
    return found


def _fields(row: Any) -> Figures:
    return {one.name: getattr(row, one.name) for one in fields(row)}


def machine(given: Given) -> None:
    """What the figures are of."""
    import torch

    from fastloop.environment import describe

    told = describe()
    given.keep(
        [{"name": name, "is": value} for name, value in told["versions"].items() if value],
        machine={name: value for name, value in told.items() if name != "versions"},
        device=str(given.device),
        cuda=torch.version.cuda,
    )


def tests(given: Given) -> None:
    from gpu_tests import run_tests

    run_tests(REPOSITORY, given.keep)


def hidden(given: Given) -> None:
    import gpu_headlines as headlines

    size = (32, 8) if given.small else (8192, 256)
    headlines.hidden(headlines.hidden_jobs(given.device, *size), given.seconds, given.keep)


def bandwidth(given: Given) -> None:
    import gpu_headlines as headlines
    import torch

    size = (32, 8) if given.small else (4096, 256)
    jobs = headlines.bandwidth_jobs(given.device, *size)
    headlines.bandwidths(jobs, torch.device(given.device), given.seconds, given.keep)


def stall(given: Given) -> None:
    import gpu_headlines as headlines
    from in_time import rows_in_time

    jobs = headlines.stall_jobs(given.device, **_photos(given, 2048, 128))
    rows_in_time(jobs, given.seconds, given.keep, looks_first=True)


def pipeline_steps(given: Given) -> None:
    import pipeline_steps as experiment
    from in_time import rows_in_time

    jobs = experiment.jobs(given.device, **_photos(given, 400, 32))
    rows_in_time(jobs, given.seconds, given.keep)


def _photos(given: Given, count: int, batch_size: int) -> Figures:
    if not given.small:
        return {"dataset__count": count, "batch_size": batch_size, "epochs": 2}
    return {"dataset__count": 8, "dataset__crop": [32, 32], "batch_size": 4, "epochs": 1}


def pinning(given: Given) -> None:
    import pinning as experiment
    from in_time import rows_in_time

    more = {"dataset__count": 64, "dataset__shape": [4], "batch_size": 16, "epochs": 1}
    jobs = experiment.jobs(given.device, **(more if given.small else {"dataset__count": 2048}))
    rows_in_time(jobs, given.seconds, given.keep)


def executions(given: Given) -> None:
    from in_time import rows_in_time
    from plain_jobs import plain_job

    data = {"dataset": "mydataset", "loader": "np_memmap", "epochs": 1, "device": given.device}
    data |= {"dataset__count": 16, "batch_size": 8} if given.small else {"dataset__count": 1280}
    names = ("eager", "cuda_graph", "tensorrt") if given.small else EXECUTIONS
    models = ("toynet",) if given.small else ("toynet", "resnet18")
    jobs = {
        f"{model}, {benchmark}, {execution}": plain_job(
            **data, model=model, benchmark=benchmark, execution=execution
        )
        for execution, model, benchmark in product(names, models, ("training", "inference"))
    }
    rows_in_time(jobs, given.seconds, lambda rows: given.keep(_beside_eager(rows)))


EXECUTIONS = ("eager", "cuda_graph", "tensorrt", "compiled")
"""The last takes longest: nothing waits for it."""


def _beside_eager(rows: list[Figures]) -> list[Figures]:
    """Each rate beside that of the same model and benchmark, sorted by these."""
    rates = {row["name"]: row.get("samples_per_s") for row in rows}
    for row in rows:
        row.pop("times_the_first", None)
        eager = rates[f"{row['name'].rpartition(', ')[0]}, eager"]
        if eager and "samples_per_s" in row:
            row["times_eager"] = row["samples_per_s"] / eager
    return sorted(rows, key=lambda row: row["name"].rpartition(", ")[0])


def placements(given: Given) -> None:
    import placements as experiment
    import torch

    if given.small:
        experiment.TREES = {"5 small": (5, 2)}
    _repeated(given, partial(experiment.measure, torch.device(given.device)))


def copies(given: Given) -> None:
    import copies as experiment

    if given.small:
        experiment.SIZES = {"4 KiB": 1 << 10}
    _repeated(given, lambda rounds: (experiment.measure(rounds), []))


def _repeated(given: Given, measure: Callable[[int], tuple[list[Any], list[str]]]) -> None:
    """One round, then as many as there is time for by that."""
    from fastloop.spans import now_ns, seconds_between

    def measured(rounds: int) -> None:
        rows, refused = measure(rounds)
        failed = any("unsupported" not in one for one in refused)
        given.keep(rows, left_out=refused, rounds=rounds, failed=failed)

    start_ns = now_ns()
    measured(1)
    took_s = seconds_between(start_ns, now_ns())
    rounds = 1 if given.small else min(ROUNDS, int(0.8 * (given.seconds - took_s) / took_s))
    if rounds > 1:
        measured(rounds)


PARTS: dict[str, tuple[Callable[[Given], None], float]] = {
    "machine": (machine, 1),
    "hidden": (hidden, 4),
    "bandwidth": (bandwidth, 4),
    "stall": (stall, 8),
    "pipeline_steps": (pipeline_steps, 6),
    "tests": (tests, 16),
    "pinning": (pinning, 5),
    "placements": (placements, 5),
    "copies": (copies, 1),
    "executions": (executions, 12),
}
"""Each with its share of the time, in the order in which they are run."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    told = parser.parse_args()
    PARTS[told.name][0](
        Given(device=told.device, seconds=told.seconds, file=told.file, small=told.small)
    )
