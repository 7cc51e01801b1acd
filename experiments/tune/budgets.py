"""Are the configurations that `fastloop tune` finds within 5 % of the best of an exhaustive grid,
with budgets of 1, 3 and 10 minutes?

python -m experiments.tune.budgets [budget in seconds ...]

Tunes five workloads with each budget, times the grid and the recommended configurations in
interleaved rounds, and prints a table. This takes about two hours on a quiet machine; an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from experiments.explain.record import Record, add_record, read_records
from experiments.explain.tables import markdown
from experiments.tune.grid import FOLDER, LAUNCHER, Configuration
from experiments.tune.live import recommended
from experiments.tune.record import time_each
from experiments.tune.workloads import Workload, delayed, is_supported
from fastloop.config.compose import compose_job
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import JobFailed

CELLS_FILE, GRID_FILE = FOLDER / "budgets.jsonl", FOLDER / "budgets_grid.jsonl"
PHOTOS = Path("outputs/tune/photos")
BUDGETS_S = (60.0, 180.0, 600.0)
ROUNDS = 5
WITHIN = 0.05
LIMIT_S = 1800.0
FEW, MANY = (0, 1, 2, 4), (0, 1, 2, 4, 8, 16, 32)
"""Numbers of workers in the grid; larger ones for samples that wait."""
COMMON = ("benchmark=traversal", "tracker=none")
WORKLOADS = (
    Workload(
        name="digits",
        overrides=("dataset=digits",),
        loaders=("raw", "fastloop", "index_loop", "numpy_loop", "np_memmap", "python_loop"),
    ),
    Workload(
        name="random crops",
        overrides=(
            "dataset=image_folder",
            f"dataset.root={PHOTOS}",
            "batch_size=16",
            "transform=random_resized_crop",
        ),
        loaders=("raw", "fastloop loader.store=null", "python_loop"),
    ),
    Workload(
        name="tokens",
        overrides=(
            "dataset=tokens",
            "dataset.num_tokens=200000",
            "dataset.block_size=64",
            "batch_size=32",
        ),
        loaders=("raw", "fastloop", "index_loop", "numpy_loop", "np_memmap", "python_loop"),
    ),
    Workload(
        name="sleeping, random",
        overrides=(
            "dataset=custom",
            "dataset.target=experiments.tune.datasets.Drawn",
            "dataset.kwargs={count:400,seconds:0.004}",
            "batch_size=16",
        ),
        loaders=("raw", "fastloop loader.store=null", "python_loop"),
    ),
    Workload(
        name="bound by the lock",
        overrides=delayed(400, "with_lock", 0.001),
        loaders=(
            "raw",
            "fastloop",
            "fastloop loader.store=null",
            "preload",
            "numpy_loop",
            "python_loop",
        ),
    ),
)


def main(budgets_s: Sequence[float]) -> None:
    """Tune and time the workloads that are missing, and print the table."""
    _write_photos()
    for workload, budget_s in product(WORKLOADS, budgets_s):
        if not any(_is_of(each, workload, budget_s) for each in read_records(CELLS_FILE)):
            add_record(CELLS_FILE, tune_one(workload, budget_s))
            print(f"tuned: {workload.name}, {budget_s:g} s", flush=True)
    for number, workload in product(range(ROUNDS), WORKLOADS):
        jobs = grid_of(workload, read_records(CELLS_FILE))
        done = [each for each in read_records(GRID_FILE) if each["workload"] == workload.name]
        # A configuration that was recommended after a round has no figure of it. Then the round is
        # timed again as a whole, as figures of different times can't be compared.
        known = [{*each["seconds"], *each["failed"]} for each in done if each["round"] == number]
        if not known or {*jobs} - known[-1]:
            seconds = time_round(jobs, number)
            failed = [name for name in jobs if name not in seconds]
            record = {"workload": workload.name, "round": number, "failed": failed}
            record["seconds"] = seconds
            add_record(GRID_FILE, record)
            print(f"timed: {workload.name}, round {number}", flush=True)
    for line in markdown(table(read_records(CELLS_FILE), read_records(GRID_FILE))).splitlines():
        print(line)


def tune_one(workload: Workload, budget_s: float) -> Record:
    """The overrides that `fastloop tune` recommends."""
    own = _own(workload)
    command = [sys.executable, "-m", "fastloop", "tune", *own, f"budget={budget_s:g}s"]
    start_ns = now_ns()
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    record: Record = {"workload": workload.name, "budget_s": budget_s}
    record["took_s"] = seconds_between(start_ns, now_ns())
    if process.returncode:
        return record | {"failed": process.stderr.strip()}
    tuned = recommended(process.stdout)
    # A configuration of the grid is timed once, under its name in the grid.
    job = compose_job(*tuned)
    same = [name for name, each in grid_of(workload, []).items() if compose_job(*each) == job]
    return record | {"tuned": tuned, "name": same[0] if same else " ".join(tuned)}


def grid_of(workload: Workload, cells: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    """Name of each configuration -> its overrides, including the recommended ones."""
    own = _own(workload)
    jobs = {"yours": own}
    for change in changes(workload):
        overrides = (*own[: -len(workload.yours)], *change)
        if is_supported(compose_job(*overrides)):
            jobs[" ".join(change)] = overrides
    tuned = [each for each in cells if each["workload"] == workload.name and "tuned" in each]
    return {each["name"]: tuple(each["tuned"]) for each in tuned} | jobs


def changes(workload: Workload) -> Iterator[tuple[str, ...]]:
    """The changes of settings of each combination in the grid."""
    counts = MANY if "sleeping" in workload.name else FEW
    for loader, threads in product(workload.loaders, ("null", "1")):
        of_loader = (*f"loader={loader}".split(), f"torch_threads={threads}")
        yield of_loader
        if loader in ("raw", "np_memmap", "preload"):
            for count, kept in product(counts[1:], ("false", "true")):
                yield (*of_loader, f"num_workers={count}", f"persistent_workers={kept}")


def time_round(jobs: dict[str, tuple[str, ...]], number: int) -> dict[str, float]:
    """Seconds of an epoch of each configuration, all timed in one process, in random order."""
    grid = {}
    for name in random.Random(number).sample([*jobs], len(jobs)):
        job = compose_job(*jobs[name])
        try:
            prepared = LAUNCHER.call(job.data_request.prepare)
        # A configuration that can't be prepared is left out.
        except JobFailed:
            continue
        # A store repeats one draw of random samples: `fastloop run` refuses it.
        if prepared.random and job.loader.store is not None:
            continue
        grid[name] = Configuration(job=job, prepared=prepared)
    timed = LAUNCHER.call(time_each, grid, number, timeout_s=LIMIT_S)
    return {name: each.seconds for name, each in timed.items()}


def table(cells: Sequence[Record], rounds: Sequence[Record]) -> list[tuple[str, ...]]:
    """A row for each workload and budget: the recommended configuration against the best one."""
    rows = [("workload", "budget", "took", "tuned to", "slower than the best", "within 5 %")]
    for cell in cells:
        first = cell["workload"], f"{cell['budget_s']:g} s", f"{cell['took_s']:.0f} s"
        if "tuned" not in cell:
            rows.append((*first, cell["failed"], "", "no"))
            continue
        of_workload = [each for each in rounds if each["workload"] == cell["workload"]]
        by_round = {each["round"]: each["seconds"] for each in of_workload}
        name = cell["name"]
        seconds = [each for each in by_round.values() if name in each]
        every = set[str]().union(*seconds).intersection(*seconds) if seconds else set[str]()
        if name not in every:
            rows.append((*first, name, "not timed", ""))
            continue
        medians = {each: stats.median([one[each] for one in seconds]) for each in every}
        best = min(medians, key=medians.__getitem__)
        behind = medians[name] / medians[best] - 1
        ratio = stats.ratio([one[name] for one in seconds], [one[best] for one in seconds])
        # All rounds together may not tell the recommended configuration from the best one.
        is_good = behind <= WITHIN or (ratio is not None and ratio.low <= 1)
        rows.append((*first, name, f"{100 * behind:.1f} %", "yes" if is_good else "no"))
    return rows


def _own(workload: Workload) -> tuple[str, ...]:
    return (*COMMON, *workload.overrides, *workload.yours)


def _is_of(cell: Record, workload: Workload, budget_s: float) -> bool:
    return cell["workload"] == workload.name and cell["budget_s"] == budget_s


def _write_photos() -> None:
    """Write an image folder of two classes with smooth random pictures."""
    from torchvision.io import write_jpeg

    if PHOTOS.exists():
        return
    generator = torch.Generator().manual_seed(0)
    for number in range(200):
        folder = PHOTOS / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        coarse = torch.rand(1, 3, 16, 20, generator=generator)
        pixels = torch.nn.functional.interpolate(coarse, (320, 400), mode="bicubic")[0]
        write_jpeg((255 * pixels.clamp(0, 1)).byte(), str(folder / f"{number}.jpg"))


if __name__ == "__main__":
    # Processes find the functions that they are sent by module name, which must not be __main__.
    from experiments.tune.budgets import main as run

    run([float(each) for each in sys.argv[1:]] or BUDGETS_S)
