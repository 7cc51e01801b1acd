"""The workloads, and for each a stratified sample of all possible configurations."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

from fastloop.config.compose import compose_job
from fastloop.core.types import Unsupported
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

COUNT = 64
"""Number of configurations of a workload."""
COMMON = ("benchmark=traversal", "tracker=none", "epochs=1", "min_window_s=0.03", "trials=5")
YOURS = "yours"
ROOT = os.environ.get("FASTLOOP_TEST_DATA", "outputs/data")
WORKERS = ("0", "1", "2", "4")
OF_WORKERS = {"prefetch_factor": ("null", "8"), "persistent_workers": ("false", "true")}
OF_ALL = {"torch_threads": ("null", "1"), "device_prefetch": ("0", "2")}
DEFAULTS = {
    name: f"{name}={values[0]}"
    for name, values in {"num_workers": WORKERS, **OF_WORKERS, **OF_ALL}.items()
}
"""The settings of a configuration that its name does not mention."""
ROWS = ("raw", "fastloop", "getitems", "np_memmap", "dataloader", "index_loop", "hdf5", "preload")
DECODED_BY_THREADS = tuple(
    f"fastloop loader.store=null loader.num_threads={threads} loader.ahead={ahead}"
    for threads, ahead in product((1, 2, 4, 8), ("null", 4))
)
NO_WORKERS = ("fastloop", "index_loop", "numpy_loop", "python_loop", "spdl")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A user's job, and the loaders that could take its place."""

    name: str
    overrides: tuple[str, ...]
    loaders: tuple[str, ...]
    yours: tuple[str, ...] = ("loader=raw",)
    """The user's present configuration, which a tuner has to beat."""


def delayed(count: int, kind: str, seconds: float, heavy_tailed: bool = False) -> tuple[str, ...]:
    """The overrides for a Dataset of known cost."""
    heavy = f",heavy_tailed:{str(heavy_tailed).lower()}"
    kwargs = f"{{count:{count},kind:{kind},seconds:{seconds}{heavy}}}"
    target = "dataset.target=experiments.tune.datasets.Delayed"
    return ("dataset=custom", target, f"dataset.kwargs={kwargs}", "batch_size=8")


TEXTBOOK = ("loader=raw", "num_workers=2")
WORKLOADS = (
    Workload(name="small rows", overrides=("dataset=digits", "batches=20"), loaders=ROWS),
    Workload(
        name="bytes to floats",
        overrides=(
            "dataset=fashion_mnist",
            "dataset.train=false",
            "batches=12",
            *(f"dataset.root={ROOT}",),
        ),
        loaders=ROWS,
    ),
    Workload(
        name="JPEG with augmentation",
        overrides=(
            "dataset=photos",
            "dataset.count=96",
            "dataset.crop=[160,160]",
            "dataset.size=[64,64]",
            "transform=augment",
            "batch_size=16",
        ),
        loaders=("raw", "getitems", "np_memmap", "hdf5", "preload", *DECODED_BY_THREADS),
        yours=TEXTBOOK,
    ),
    Workload(
        name="mapped rows",
        overrides=("dataset=mydataset", "dataset.count=20000", "batches=40"),
        loaders=ROWS,
        yours=("loader=np_memmap",),
    ),
    Workload(
        name="tokens",
        overrides=(
            "dataset=tokens",
            "dataset.num_tokens=200000",
            "dataset.block_size=64",
            "batch_size=32",
            "batches=40",
        ),
        loaders=ROWS,
    ),
    Workload(
        name="ragged texts",
        overrides=(
            "dataset=texts",
            "dataset.count=800",
            "collate=pad",
            "placement=recursive",
            "batch_size=32",
        ),
        loaders=("raw", "fastloop", "np_memmap", "preload", *DECODED_BY_THREADS),
    ),
    Workload(
        name="tabular",
        overrides=(
            "dataset=custom",
            "dataset.target=experiments.tune.datasets.Table",
            "dataset.kwargs={count:8000,features:20}",
            "batch_size=512",
        ),
        loaders=ROWS,
        yours=TEXTBOOK,
    ),
    Workload(
        name="slow reads",
        overrides=delayed(48, "sleep", 0.002),
        loaders=("raw", *DECODED_BY_THREADS),
    ),
    Workload(
        name="heavy-tailed cost",
        overrides=delayed(64, "without_lock", 0.001, heavy_tailed=True),
        loaders=("raw", *DECODED_BY_THREADS),
        yours=TEXTBOOK,
    ),
    Workload(
        name="bound by the lock",
        overrides=delayed(64, "with_lock", 0.001),
        loaders=("raw", *DECODED_BY_THREADS),
    ),
    Workload(
        name="tiny data",
        overrides=("dataset=synthetic", "dataset.count=64", "dataset.shape=[8]", "batch_size=16"),
        loaders=ROWS,
        yours=TEXTBOOK,
    ),
    Workload(
        name="trained model",
        overrides=("dataset=digits", "batches=20", "benchmark=training", "model=toynet"),
        loaders=ROWS,
        yours=TEXTBOOK,
    ),
)


def configurations(workload: Workload) -> dict[str, Job]:
    """Name -> job, for COUNT configurations of the workload, the user's own first. A name lists the
    settings that distinguish the job.

    Each loader has an equal part of them, drawn at random, unless it has fewer configurations.
    """
    generator = random.Random(workload.name)
    jobs = {YOURS: compose(workload, workload.yours)}
    by_loader = [[*_changes(loader)] for loader in _grouped(workload.loaders)]
    for changes in by_loader:
        generator.shuffle(changes)
    for change in (each for turn in zip_longest(*by_loader) for each in turn if each):
        if len(jobs) == COUNT:
            break
        job = compose(workload, change)
        if job not in jobs.values() and is_supported(job):
            jobs[" ".join(change)] = job
    return jobs


def compose(workload: Workload, change: Sequence[str]) -> Job:
    """The job of a workload with these overrides."""
    return compose_job(*overrides_of(workload, change))


def overrides_of(workload: Workload, change: Sequence[str]) -> tuple[str, ...]:
    """The overrides of a workload, followed by these."""
    names = {each.partition("=")[0] for each in workload.overrides}
    common = [each for each in COMMON if each.partition("=")[0] not in names]
    return (*common, *workload.overrides, *change)


def is_supported(job: Job) -> bool:
    """True if this machine can run the job."""
    try:
        check_support(job)
    except Unsupported:
        return False
    return True


def _grouped(loaders: Sequence[str]) -> list[list[str]]:
    """The loaders in groups; loaders that differ only in their own settings are in one group."""
    groups: dict[str, list[str]] = {}
    for loader in loaders:
        groups.setdefault(loader.split()[0], []).append(loader)
    return [*groups.values()]


def _changes(loaders: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The overrides of every combination with one of these loaders."""
    for loader in loaders:
        first, *settings = loader.split()
        for workers in ("0",) if first in NO_WORKERS else WORKERS:
            spaces: Mapping[str, Sequence[str]] = OF_ALL | (OF_WORKERS if workers != "0" else {})
            for values in product(*spaces.values()):
                chosen = [f"{name}={value}" for name, value in zip(spaces, values, strict=True)]
                count = [] if first in NO_WORKERS else [f"num_workers={workers}"]
                yield (f"loader={first}", *settings, *count, *chosen)


def changes_from_yours(workload_name: str, names: Sequence[str]) -> list[frozenset[str]]:
    """The settings by which each configuration differs from the user's own."""
    (workload,) = (each for each in WORKLOADS if each.name == workload_name)
    yours = _settings(workload.yours)
    settings = [yours if name == YOURS else _settings(name.split()) for name in names]
    return [frozenset(each - yours) for each in settings]


def settings_of(workload_name: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Name of a configuration -> name of each setting -> its value, empty if the configuration has
    no such setting."""
    (workload,) = (each for each in WORKLOADS if each.name == workload_name)
    pairs = {
        name: {
            text.partition("=")[0]: text.partition("=")[2]
            for text in _settings(workload.yours if name == YOURS else name.split())
        }
        for name in names
    }
    every = sorted({setting for each in pairs.values() for setting in each})
    return {
        name: {setting: each.get(setting, "") for setting in every} for name, each in pairs.items()
    }


def _settings(change: Sequence[str]) -> set[str]:
    """All settings of a configuration, with the defaults of those that its name does not
    mention."""
    named = {each.partition("=")[0] for each in change}
    return {*change, *(text for name, text in DEFAULTS.items() if name not in named)}
