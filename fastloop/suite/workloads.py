"""Declare the seven workloads of the suite and their rows: loaders with default and tuned settings.

A workload is a list of overrides. Its data are generated, or come with a package, and nothing is
downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastloop.core.types import UsageError

SUITE = "1.0"
"""Version of the workloads: figures of different versions are never compared."""
Configuration = Literal["default", "tuned"]
Scope = Literal["quick", "full", "claims"]
COMMON = ("benchmark=traversal", "tracker=none", "report=false", "device=cpu", "cache=warm")
"""Overrides of all jobs: the page cache is warm, so that every loader finds its files in memory. A
workload with a dataset that has no files sets cache=as_is instead."""
OF_SCOPE: dict[Scope, tuple[str, ...]] = {
    "quick": ("trials=3", "min_window_s=0.1", "seconds=60", "trial_timeout_s=60"),
    "full": ("trials=7", "min_window_s=0.3", "seconds=300", "trial_timeout_s=300"),
    "claims": ("trials=20", "min_window_s=0.3", "seconds=120", "trial_timeout_s=300"),
}
"""Overrides of the jobs of each scope. `seconds` limits the rounds of a workload, so that a slow
machine measures fewer of them. A workload of the scope "claims" has only two rows, so there is time
for more rounds; with fewer, the noise would leave most claims undecided."""
NOT_QUICK = "the quick suite leaves this loader out, the whole one measures it"
"""Reason for a loader that the quick suite leaves out."""
QUICK_LOADERS = (
    "raw",
    "fastloop",
    "preload",
    "np_memmap",
    "tensorclass",
    "parquet",
    "hf_datasets",
    "webdataset",
    "lance",
    "spdl",
)
"""Loaders of the quick suite, one of each kind. Each takes about 5 s a workload on two cores."""

READ_SAMPLES = ("fastloop", "grain", "spdl", "spdl_process", "torchdata_nodes", "turboloader")
"""Loaders that read the dataset's samples themselves if they are given no store."""
WITHOUT_STORE = tuple((loader, "loader.store=null") for loader in READ_SAMPLES)


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """A row of a workload: a loader with its default settings, or as an author has tuned it."""

    loader: str
    configuration: Configuration = "default"
    overrides: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name of the row within its workload: `raw`, or `raw num_workers=2`."""
        return " ".join((self.loader, *(self.overrides if self.configuration == "tuned" else ())))


@dataclass(frozen=True, kw_only=True)
class SuiteWorkload:
    """A named kind of data and work."""

    name: str
    title: str
    overrides: tuple[str, ...]
    """The dataset, its size, and all that defines the work."""
    quick: tuple[str, ...]
    """Further overrides in the quick suite, which make the data smaller."""
    reads_samples: bool = False
    """True if loaders have to read the dataset's own samples, because a store would not have the
    cost of reading them."""
    per_loader: tuple[tuple[str, str], ...] = ()
    """Pairs (loader, override): the loader can run this workload only with the override."""
    rows: tuple[SuiteRow, ...] = ()
    """The only rows of this workload; empty: every loader with defaults, and the rows of TUNED."""

    def overrides_in(self, scope: Scope) -> tuple[str, ...]:
        """The workload's overrides in this scope."""
        return (*self.overrides, *(self.quick if scope == "quick" else ()))


WORKLOADS = (
    SuiteWorkload(
        name="small_rows",
        title="Small rows: 28x28 float32 in memory",
        overrides=("dataset=mydataset", "dataset.count=6000", "batch_size=256", "epochs=1"),
        quick=("dataset.count=3000",),
    ),
    SuiteWorkload(
        name="bytes_to_floats",
        title="Bytes to floats: 3x32x32 uint8, normalized",
        overrides=(
            "dataset=synthetic",
            "dataset.dtype=uint8",
            "dataset.shape=[3,32,32]",
            "dataset.count=5000",
            "transform=peers/to_floats",
            "cache=as_is",
            "batch_size=256",
            "epochs=1",
        ),
        quick=("dataset.count=2000",),
    ),
    SuiteWorkload(
        name="jpeg_crops",
        title="JPEG files, cropped at random to 224x224",
        overrides=(
            "dataset=photos",
            "dataset.count=240",
            "dataset.crop=[375,500]",
            "transform=random_resized_crop",
            "batch_size=32",
            "epochs=1",
        ),
        quick=("dataset.count=64",),
    ),
    SuiteWorkload(
        name="tokens",
        title="Tokens: windows of 256 of a flat file",
        overrides=("dataset=tokens", "dataset.num_tokens=1000000", "batch_size=64", "epochs=1"),
        quick=("dataset.num_tokens=400000",),
    ),
    SuiteWorkload(
        name="table",
        title="Table: 40 columns from Parquet",
        overrides=(
            "dataset=table",
            "dataset.count=1000",
            "placement=pytree",
            "batch_size=256",
            "epochs=1",
        ),
        quick=("dataset.count=600",),
    ),
    SuiteWorkload(
        name="ragged_text",
        title="Ragged text with a heavy tail, padded",
        overrides=(
            "dataset=texts",
            "dataset.count=8000",
            "dataset.max_length=4096",
            "collate=pad",
            "placement=recursive",
            "batch_size=64",
            "epochs=1",
        ),
        quick=("dataset.count=1500",),
        per_loader=WITHOUT_STORE,
    ),
    SuiteWorkload(
        name="slow_reads",
        title="Slow I/O: 2 ms until a sample arrives",
        overrides=(
            "dataset=slow_reads",
            "dataset.count=300",
            "cache=as_is",
            "batch_size=32",
            "epochs=1",
        ),
        quick=("dataset.count=100",),
        reads_samples=True,
        per_loader=WITHOUT_STORE,
    ),
)
TUNED: dict[str, tuple[SuiteRow, ...]] = {
    "jpeg_crops": (SuiteRow(loader="raw", configuration="tuned", overrides=("num_workers=2",)),),
    "ragged_text": (SuiteRow(loader="raw", configuration="tuned", overrides=("num_workers=2",)),),
    "slow_reads": (
        SuiteRow(
            loader="raw",
            configuration="tuned",
            overrides=("num_workers=8", "persistent_workers=true"),
        ),
        SuiteRow(
            loader="fastloop",
            configuration="tuned",
            overrides=("loader.store=null", "loader.num_threads=16"),
        ),
    ),
}
"""Name of a workload -> its rows that an author has tuned. To add one, add a line here."""


def choose_workloads(names: str, workloads: tuple[SuiteWorkload, ...]) -> tuple[SuiteWorkload, ...]:
    """Choose the workloads that a comma-separated list names; all for an empty list.

    They stay in the order of `workloads`. Raises UsageError for an unknown name.
    """
    allowed = [each.name for each in workloads]
    chosen = names.split(",") if names else allowed
    for name in chosen:
        if name not in allowed:
            raise UsageError(f"workloads={name}: allowed: {', '.join(allowed)}")
    return tuple(each for each in workloads if each.name in chosen)


def rows_of(workload: SuiteWorkload, loaders: Sequence[str]) -> list[SuiteRow]:
    """The rows of a workload: each of these loaders with default settings, then the tuned rows.

    If the workload lists its only rows, the result is those of them that have one of these loaders.
    """
    if workload.rows:
        return [row for row in workload.rows if row.loader in loaders]
    needed = dict(workload.per_loader)
    rows = [
        SuiteRow(loader=name, overrides=(needed[name],) if name in needed else ())
        for name in loaders
    ]
    return rows + [row for row in TUNED.get(workload.name, ()) if row.loader in loaders]


def overrides_of(
    workload: SuiteWorkload, row: SuiteRow, scope: Scope, changes: Sequence[str]
) -> list[str]:
    """The overrides of a row's job, one for each setting: a later override replaces an earlier one.

    changes: overrides of this command, which come last.
    """
    of_workload = workload.overrides_in(scope)
    overrides = [
        f"loader={row.loader}",
        *(*COMMON, *OF_SCOPE[scope], *of_workload, *row.overrides, *changes),
    ]
    return [*{each.partition("=")[0]: each for each in overrides}.values()]


def reason_to_leave_out(
    workload: SuiteWorkload, row: SuiteRow, scope: Scope, with_store: Sequence[str]
) -> str:
    """The reason why the row is not measured; empty if it is.

    with_store: the loaders that read a store by default.
    """
    if scope == "quick" and row.loader not in QUICK_LOADERS:
        return NOT_QUICK
    has_no_store = "loader.store=null" in row.overrides
    if workload.reads_samples and row.loader in with_store and not has_no_store:
        return "it reads a store, which has none of the latency that is measured"
    return ""
