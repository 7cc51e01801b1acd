"""What a job gave: raw values, kept; every figure is recomputed from them."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic.dataclasses import dataclass

from fastloop import stats
from fastloop.files import write_text
from fastloop.resources import Resources
from fastloop.spans import seconds_between

KEEPS_NAN = pydantic.ConfigDict(ser_json_inf_nan="constants")
"""A diverged loss is a raw value too."""
RESULT_FILE = "result.json"
RESOURCE_METRICS = (
    "peak_pss_mib",
    "peak_shm_mib",
    "peak_gpu_mib",
    "context_switches",
    "read_mib",
)
"""Those of the whole instrumented process; cpu_cores is told of its epoch with spans."""
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Measured:
    """One benchmark in one trial: clock values, and the limit measured beside them."""

    start_ns: int
    stop_ns: int
    epochs: int
    samples: int
    """Distinct samples delivered in the window, by all ranks."""
    limit_samples_per_s: float
    losses: list[float] = field(default_factory=list)
    """Mean loss of each epoch; empty without a model."""
    cached_before: float | None = None
    """Share of the files' pages in memory before the cache was brought into the state asked for."""
    cached_fraction: float | None = None
    """The same right before the window; None where the system or the dataset does not tell."""
    rank_seconds: list[float] = field(default_factory=list)
    """Length of each rank's window; start_ns and stop_ns are the slowest one's. Empty for one
    process."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return seconds_between(self.start_ns, self.stop_ns)

    @property
    def samples_per_s(self) -> float:
        """Distinct samples a second."""
        return self.samples / self.seconds


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Trial:
    """One timed repetition in a process of its own."""

    number: int
    seed: int
    benchmarks: dict[str, Measured]
    torch_threads: int
    multiprocessing_context: str | None
    load_average: float | None
    launch_s: float = 0.0
    """Seconds from asking for the process until its work began."""
    started_ms: int = 0
    """Milliseconds since 1970."""
    session_ms: int = 0
    """When the command that ran it began; a resumed sweep has several."""
    data_mib: float | None = None
    """Size of the files that the loader reads; None where the dataset does not tell them."""
    rank_torch_threads: list[int] = field(default_factory=list)
    """Each rank's; torch_threads is that of rank 0. Empty for one process."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class RankPass:
    """One rank in the instrumented pass: its batches, seconds of the epoch, and of what the loop
    waited for."""

    batches: int
    seconds: float
    wait_s: float
    place_s: float
    idle_s: float | None = None
    """In which its device ran no step; None where the step runs on the host's clock."""

    @property
    def loading_s(self) -> float:
        """What loading cost the step. On a device a copy waits for what other ranks have yet to do,
        so that the host's clock would show the fast ones waiting."""
        return self.wait_s + self.place_s if self.idle_s is None else self.idle_s


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Attribution:
    """One benchmark in the instrumented pass: one epoch with spans."""

    seconds: float
    first_batch_s: float
    """From `open` until the first batch is on the device."""
    wait_s: list[float]
    """What the loop waited for each batch to come out of the loader."""
    place_s: list[float]
    """What each placement took."""
    idle_s: float | None = None
    """Time of the epoch in which the device ran no step, by its own events; None where the step
    runs on the host's clock, so that this is what the loop waited and placed."""
    cpu_s: float
    """User and system time of the process and its workers in that epoch."""
    step_s: float | None = None
    """A step of several ranks on batches that are at hand; None for one process."""
    own_step_s: float | None = None
    """The same while each rank keeps its gradients to itself."""
    ranks: list[RankPass] = field(default_factory=list)
    """Each rank's own; what is told above is all ranks', seconds the slowest one's. Empty for one
    process."""
    resources: Resources | None = None
    """Of the whole instrumented process and its workers: its start, opening the loader, the warm-up
    epoch and the epoch with spans; sampled from outside, None where nobody looked."""

    @property
    def stall_fraction(self) -> float:
        """Share of the epoch in which no step ran for want of a batch; the mean of all ranks."""
        host_s = (sum(self.wait_s) + sum(self.place_s)) / max(1, len(self.ranks))
        return (host_s if self.idle_s is None else self.idle_s) / self.seconds


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Result:
    """A job: what was asked for, what came of it."""

    name: str
    loader: str
    dataset: str
    params: dict[str, Any]
    tags: dict[str, str]
    status: Status = "RUNNING"
    status_reason: str = ""
    fingerprint: str = ""
    """The data's: where it comes from."""
    content: str = ""
    """What the data is: the same for the same samples, wherever they come from."""
    alike: str = ""
    """The same for images that are the same but for decoders which agree within a tolerance."""
    pixels_off: int = 0
    """By how much of 255 the samples looked at differ from Pillow's at most."""
    key: str = ""
    """The trials': configuration, code, data, library versions and machine."""
    num_samples: int = 0
    sample_nbytes: int = 0
    prepare_s: float = 0.0
    disk_mib: float = 0.0
    skipped: list[str] = field(default_factory=list)
    """Why, for each sample that can't be decoded and is left out of every epoch."""
    trials: list[Trial] = field(default_factory=list)
    attribution: dict[str, Attribution] = field(default_factory=dict)
    one_process: dict[str, list[float]] = field(default_factory=dict)
    """For a job of several ranks and by benchmark, samples a second of the same by one process, in
    each of its trials."""
    rounds: list[list[str]] = field(default_factory=list)
    """The order of the jobs in each round of the sweep."""
    environment: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    """What a reader of the figures has to know, in a line each."""
    run_id: str = ""
    """The tracker's own."""
    recorded: bool = False
    """True once the tracker has all of it."""


_adapter = pydantic.TypeAdapter(Result)


def save(result: Result, folder: Path) -> None:
    """Write <folder>/result.json beside and rename."""
    write_text(folder / RESULT_FILE, _adapter.dump_json(result, indent=1).decode())


def load(folder: Path) -> Result:
    """The result in <folder>/result.json; raises pydantic's ValidationError for a foreign file."""
    return _adapter.validate_json((folder / RESULT_FILE).read_bytes())


def measured(result: Result, benchmark: str) -> list[Measured]:
    """That benchmark's trials, in the order in which they were run."""
    return [trial.benchmarks[benchmark] for trial in result.trials if benchmark in trial.benchmarks]


def metrics(result: Result) -> dict[str, float]:
    """Every figure of the MLflow contract that this result has raw values for."""
    figures: dict[str, float | None] = {
        "prepare/seconds": result.prepare_s,
        "prepare/disk_mib": result.disk_mib,
        "skipped_samples": float(len(result.skipped)) if result.skipped else None,
    }
    for benchmark in dict.fromkeys(name for trial in result.trials for name in trial.benchmarks):
        for name, value in _benchmark_metrics(result, benchmark).items():
            figures[f"{benchmark}/{name}"] = value
    return {name: value for name, value in figures.items() if value is not None}


def _benchmark_metrics(result: Result, benchmark: str) -> dict[str, float | None]:
    trials = measured(result, benchmark)
    seconds = [trial.seconds for trial in trials]
    samples_per_s = stats.median([trial.samples_per_s for trial in trials])
    figures: dict[str, float | None] = {
        "seconds_mean": stats.mean(seconds),
        "seconds_std": stats.std(seconds),
        "seconds_median": stats.median(seconds),
        "samples_per_s": samples_per_s,
        "bytes_per_s": samples_per_s * result.sample_nbytes,
        "limit_fraction": stats.median([t.samples_per_s / t.limit_samples_per_s for t in trials]),
    }
    if result.one_process.get(benchmark):
        alone = stats.median(result.one_process[benchmark]) * world_size(result)
        figures["scaling_efficiency"] = samples_per_s / alone
    if trials[0].losses:
        figures["loss_first"] = trials[0].losses[0]
        figures["loss_last"] = trials[0].losses[-1]
    if benchmark in result.attribution:
        figures |= _attribution_metrics(result, benchmark)
    return figures


def _attribution_metrics(result: Result, benchmark: str) -> dict[str, float | None]:
    pass_ = result.attribution[benchmark]
    waits_ms = [1e3 * wait for wait in pass_.wait_s]
    bare_epoch_s = stats.median([one.seconds / one.epochs for one in measured(result, benchmark)])
    figures: dict[str, float | None] = {
        f"wait_p{percent}_ms": stats.percentile(waits_ms, percent) for percent in (50, 95, 99)
    }
    figures["first_batch_s"] = pass_.first_batch_s
    figures["cpu_cores"] = pass_.cpu_s / pass_.seconds
    for name in RESOURCE_METRICS:
        figures[name] = getattr(pass_.resources, name, None)
    figures["instrumented_ratio"] = pass_.seconds / bare_epoch_s
    if benchmark != "traversal":
        figures["stall_fraction"] = pass_.stall_fraction
    if pass_.ranks:
        loading_s = [one.loading_s for one in pass_.ranks]
        figures["straggler_index"] = (
            max(loading_s) / stats.mean(loading_s) if any(loading_s) else 1.0
        )
    if pass_.step_s and pass_.own_step_s:
        figures["sync_fraction"] = 1 - pass_.own_step_s / pass_.step_s
    return figures


def world_size(result: Result) -> int:
    """How many processes did the job's work together."""
    return int(result.params.get("world_size", 1))
