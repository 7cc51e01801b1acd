"""Result: the configuration of a job and the raw values of its measurements, from which reports
and trackers compute every metric."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Any, Literal

import pydantic
from pydantic.dataclasses import dataclass

from fastloop.core.explanation import Explanation
from fastloop.core.limit import LimitOrigin
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.machine_load import Load
from fastloop.core.spans import seconds_between
from fastloop.core.types import FailureKind

KEEPS_NAN = pydantic.ConfigDict(ser_json_inf_nan="constants")
"""JSON with NaN and Infinity: the loss of a diverged model is a raw value too."""

BenchmarkName = Annotated[str, pydantic.StringConstraints(pattern=r"^\w+$")]
"""Letters, digits and underscores only: it is also the name of a file in the report."""
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a process and all its children, from start to answer; None if unknown."""

    peak_pss_mib: float | None = None
    """Proportional set size: memory that several processes share is counted once."""
    peak_shm_mib: float | None = None
    """Growth of /dev/shm by any process; parts of it that are mapped also count in the PSS."""
    peak_gpu_mib: float | None = None
    """GPU memory of these processes, including the CUDA context, as NVML reports it."""
    cpu_cores: float | None = None
    """User and system time per second; None if less than LEAST_SECONDS were observed."""
    context_switches: int | None = None
    """Voluntary and involuntary switches of all threads."""
    read_mib: float | None = None
    """MiB read from storage; data from the page cache is not counted."""
    samples: int = 0
    """Number of times that the resources were sampled."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class RankPass:
    """A rank in the instrumented pass: its batches, and seconds of the epoch and of its waits."""

    batches: int
    seconds: float
    wait_s: float
    place_s: float
    idle_s: float | None = None
    """Seconds in which the device ran no step; None if steps are timed by the host's clock."""

    @property
    def loading_s(self) -> float:
        """Seconds that loading cost the steps: idle_s or, without it, waits and placements."""
        # On a device, the time of a copy includes the wait for queued work that needs other ranks.
        # By the host's clock, a fast rank would therefore seem to wait for data.
        return self.wait_s + self.place_s if self.idle_s is None else self.idle_s


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Attribution:
    """A benchmark in the instrumented pass: one epoch with spans."""

    seconds: float
    first_batch_s: float
    """Seconds from `open` until the first batch is on the device."""
    wait_s: list[float]
    """Seconds of the wait for each batch of the loader."""
    place_s: list[float]
    """Seconds of each placement."""
    idle_s: float | None = None
    """Seconds of the epoch in which the device ran no step, by CUDA events. None if steps are timed
    by the host's clock: the sum of all waits and placements then replaces this value."""
    cpu_s: float
    """User and system time of the process and its workers in cpu_window_s."""
    cpu_window_s: float | None = None
    """Seconds of the epoch and of its repeats: a short epoch is repeated until its CPU time can be
    measured. None in older files, which have the CPU time of one epoch."""
    usable_cores: float | None = None
    """Cores that these processes may use; None in older files."""
    runs_model: bool = True
    """False if a placed batch is not used further: no step can then wait for the batch."""
    step_s: float | None = None
    """Seconds of a step of several ranks on batches that are already on the device; None for one
    process."""
    local_step_s: float | None = pydantic.Field(
        default=None, validation_alias=pydantic.AliasChoices("local_step_s", "own_step_s")
    )
    """Seconds of the same step without the exchange of gradients; `own_step_s` in older files."""
    ranks: list[RankPass] = field(default_factory=list)
    """The pass of each rank; empty for one process. The fields above cover all ranks, and `seconds`
    is that of the slowest rank."""
    resources: Resources | None = None
    """Resources of the whole instrumented process and its workers, from its start, through the
    warm-up epoch, to the end of the epoch with spans. Another process samples the resources; None
    if sampling was off."""

    @property
    def cpu_cores(self) -> float | None:
        """Cores that were busy with the job, at most the usable ones; None if too little time
        was observed to tell."""
        seconds = self.seconds if self.cpu_window_s is None else self.cpu_window_s
        if seconds < LEAST_SECONDS:
            return None
        return min(self.cpu_s / seconds, self.usable_cores or math.inf)

    @property
    def stall_fraction(self) -> float:
        """Share of the epoch in which no step ran for lack of a batch; the mean over all ranks."""
        host_s = (sum(self.wait_s) + sum(self.place_s)) / max(1, len(self.ranks))
        return (host_s if self.idle_s is None else self.idle_s) / self.seconds


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Measurement:
    """A benchmark in one trial: clock readings, and the machine limit measured next to them."""

    start_ns: int
    stop_ns: int
    epochs: int
    repeats: int = 1
    """Number of times that the window repeats these epochs, so that it lasts min_window_s."""
    samples: int
    """Samples that all ranks deliver in these epochs together: the sum over the epochs, without the
    samples that are repeated to make the ranks' shares equal."""
    limit_samples_per_s: float | None
    """The machine's limit; None if no limit of this kind of work is measured."""
    limit_origin: LimitOrigin | None = None
    """Kind of work, engine and cores of the limit; None without a limit and in older files."""
    limit_key: str = ""
    """Trials of a round with the same key share one limit, which the first of them measured. Empty
    if each trial measures its own limit, and in older files."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of each epoch; empty without a model."""
    cached_before: float | None = None
    """Share of the files' pages in memory before the page cache was set to the requested state."""
    cached_fraction: float | None = None
    """Share of the files' pages in memory right before the window; None if the system or the
    dataset does not report it."""
    rank_seconds: list[float] = field(default_factory=list)
    """`seconds` of each rank; empty for one process. start_ns and stop_ns are the slowest
    rank's."""

    def __post_init__(self) -> None:
        if self.stop_ns <= self.start_ns:
            raise ValueError("a window's stop_ns is larger than its start_ns")

    @property
    def seconds(self) -> float:
        """Time of the epochs: the length of the window over its repeats."""
        return seconds_between(self.start_ns, self.stop_ns) / self.repeats

    @property
    def samples_per_s(self) -> float:
        """Samples per second, without those that are repeated to make the ranks' shares equal."""
        return self.samples / self.seconds

    @property
    def limit_fraction(self) -> float | None:
        """Share of the limit; None without a limit."""
        limit = self.limit_samples_per_s
        return None if limit is None else self.samples_per_s / limit


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The epochs that a trial has asked its loader for, and that its shadow asks for again."""

    compares_data: bool = True
    """True if a whole epoch was compared with the dataset before the windows, and one after."""
    unread: bool = False
    """True if this comparison, or that of an earlier trial, has found that a batch may contain
    bytes that have not yet been read from a file."""
    windows: dict[BenchmarkName, list[int]] = field(default_factory=dict)
    """Name of a benchmark -> number of times that each of its windows repeated the epochs; the last
    window counts."""
    replays: list[BenchmarkName] = field(default_factory=list)
    """Benchmarks with a limit that was measured by batches of the loader."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Trial:
    """A timed repetition in its own process."""

    number: int
    seed: int
    benchmarks: dict[BenchmarkName, Measurement]
    torch_threads: int
    multiprocessing_context: str | None
    load_average: float | None
    launch_s: float = 0.0
    """Seconds from requesting the process until its work began."""
    started_ms: int = 0
    """Milliseconds since 1970."""
    session_ms: int = 0
    """Start of the command that ran the trial; a resumed sweep has several."""
    data_mib: float | None = None
    """Size of the files that the loader reads; None if the dataset does not list them."""
    rank_torch_threads: list[int] = field(default_factory=list)
    """torch_threads of each rank; empty for one process. `torch_threads` is the value of rank 0."""
    left_running: list[str] = field(default_factory=list)
    """Commands and process ids of processes that the trial left running; they were then ended."""
    load: Load | None = None
    """The load by other programs during the trial; None in older files."""
    calls: Calls | None = None
    """The epochs that the trial asked of its loader; None in older files."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Shuffling:
    """Quality of a rank's shuffling, judged from the samples that the rank delivers."""

    each_sample_once: bool
    new_order_each_epoch: bool | None
    """True if each epoch has a new order; None if there is a single epoch."""
    distance: float
    """Mean distance of a sample from its stored place: 0 in stored order, 1 if it is uniform."""
    neighbours_kept: float
    """Share of stored neighbours that are delivered within a batch size of each other, on a scale
    from 0, the share that a uniform shuffle would keep, to 1, the share in stored order."""
    ranks_disjoint: bool | None = None
    """True if no sample is delivered by two ranks; None for one process."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Shadow:
    """A trial run once more with the same calls, to compare its samples with the dataset."""

    number: int
    """Number of the trial that was repeated; it is drawn at random."""
    epochs: int
    """Number of epochs of the windows that were compared with the dataset."""
    shuffling: Shuffling | None
    """The quality of the shuffling; None if the samples are not known, as with same_data=false."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Result:
    """The configuration of a job and all of its measurements."""

    schema: Literal[1] = 1
    """Number of the schema of result.json, result.schema.json; files without it are older."""
    name: str
    loader: str
    dataset: str
    params: dict[str, Any]
    tags: dict[str, str]
    status: Status = "RUNNING"
    status_reason: str = ""
    failure_kind: FailureKind | None = None
    """The kind of the failure; None: no failure."""
    fingerprint: str = ""
    """Fingerprint of the data's source."""
    content: str = ""
    """Fingerprint of the samples, independent of their order and source."""
    decoder_equivalence_id: str = pydantic.Field(
        default="", validation_alias=pydantic.AliasChoices("decoder_equivalence_id", "alike")
    )
    """Equal for datasets with decoders that agree within 2/255; `alike` in older files."""
    pixels_off: int = 0
    """Largest difference from Pillow's pixels, in 255ths, among the compared samples."""
    key: str = ""
    """Key of the trials: configuration, code, data, library versions and machine."""
    num_samples: int = 0
    sample_nbytes: int = 0
    """Bytes per sample; the mean, without padding, if samples differ in length."""
    prepare_s: float = 0.0
    """Seconds that writing the store took; 0 without a store."""
    disk_mib: float = 0.0
    """Size of the store's files; 0 without a store."""
    random: bool = False
    """True if samples are random and were compared with seeded generators."""
    compared_crops: int = 0
    """Number of crops in an epoch that were compared pixel by pixel; 0: all samples were hashed
    instead."""
    skipped: list[str] = field(default_factory=list)
    """Reason for each sample that can't be decoded and is left out of every epoch."""
    trials: list[Trial] = field(default_factory=list)
    shadow: Shadow | None = None
    attribution: dict[BenchmarkName, Attribution] = field(default_factory=dict)
    """Name of a benchmark -> its epoch in the instrumented pass; empty before that pass."""
    explanation: Explanation | None = None
    """Present with explain=true, for a job that could be explained."""
    one_process: dict[str, list[float]] = field(default_factory=dict)
    """Name of a benchmark -> samples per second of one process in each trial, for a job of several
    ranks."""
    rounds: list[list[str]] = field(default_factory=list)
    """The order of the jobs in each round of the sweep."""
    environment: dict[str, Any] = field(default_factory=dict)
    caveats: list[str] = pydantic.Field(
        default_factory=list,
        validation_alias=pydantic.AliasChoices("caveats", "flags"),
        serialization_alias="flags",
    )
    """Reservations about the figures, one line each; `flags` in result.json."""
    run_id: str = ""
    """Id of the tracker's run."""
    recorded: bool = False
    """True once the tracker holds the complete result."""


def measurements(result: Result, benchmark: str) -> list[Measurement]:
    """The measurements of a benchmark in all trials, in the order in which they ran."""
    return [trial.benchmarks[benchmark] for trial in result.trials if benchmark in trial.benchmarks]


def world_size(result: Result) -> int:
    """Number of processes that ran the job together."""
    return int(result.params.get("world_size", 1))


def outcome(result: Result) -> tuple[str, str]:
    """The job's status and its reason, as reports show them."""
    # A job that can't run here has the status FAILED, but failed at nothing: it was skipped.
    if result.failure_kind is FailureKind.UNSUPPORTED:
        return "skipped", result.status_reason.removeprefix(f"{FailureKind.UNSUPPORTED}: ")
    return result.status, result.status_reason


def verdict_word(result: Result, benchmark: str) -> str:
    """The word of the job's verdict, such as `transform`; empty if the job was not explained in
    this benchmark."""
    explanation = result.explanation
    if explanation is None or explanation.benchmark != benchmark:
        return ""
    return explanation.verdict.word
