"""Jobs measured side by side in rounds, each trial in a fresh process, without a tracker."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastloop.core import stats
from fastloop.core.interleave import rounds
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns
from fastloop.core.types import JobFailed, Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.options.launcher.single import SingleLauncher
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.job import Job
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one job."""

    name: str
    reason: str = ""
    """The reason why there are no figures; empty if there are."""
    seconds: tuple[float, ...] = ()
    """Seconds of each trial, by round."""
    samples: int = 0
    """Number of samples that a trial delivers."""
    wait_s: float = 0.0
    """Seconds that the loop waited for batches in one further epoch, including the first batch."""
    epoch_s: float = 0.0
    """Seconds of that epoch."""

    @property
    def samples_per_s(self) -> float:
        """Median over the trials."""
        return self.samples / stats.median(self.seconds)


@dataclass
class JobRun:
    """A job while it is being measured."""

    job: Job
    prepared: PreparedData | None = None
    seconds: list[float] = field(default_factory=list)
    samples: int = 0
    reason: str = ""
    """The reason why it is no longer measured; empty if it is."""


def measure_rows(jobs: Mapping[str, Job], benchmark: str, trials: int) -> list[Row]:
    """A row for each job, in their order. If a job can't be run here, its row has the reason."""
    launcher = SingleLauncher(isolation="forkserver")
    runs = {name: prepare_run(job, launcher) for name, job in jobs.items()}
    prepared_names = [name for name, run in runs.items() if not run.reason]
    for number, names in rounds(dict.fromkeys(prepared_names, trials)):
        for name in names:
            add_trial(runs[name], launcher, benchmark, number)
    return [row_of(name, run, launcher, benchmark) for name, run in runs.items()]


def prepare_run(job: Job, launcher: SingleLauncher) -> JobRun:
    """The job with its data prepared, or with the reason why it can't be measured."""
    run = JobRun(job)
    try:
        check_support(job)
        run.prepared = launcher.call(prepare, job.dataset, job.loader.store, job.collate.tolerant)
    except Unsupported as error:
        run.reason = f"unsupported: {error}"
    except JobFailed as failure:
        run.reason = str(failure)
    return run


def add_trial(run: JobRun, launcher: SingleLauncher, benchmark: str, number: int) -> None:
    """Run one trial of the job, and add its time; a failure becomes the job's reason."""
    if run.reason:
        return
    try:
        trial = launcher.call(run_trial, run.job, run.prepared, number, now_ns())
    except JobFailed as failure:
        run.reason = str(failure)
        return
    run.seconds.append(trial.benchmarks[benchmark].seconds)
    run.samples = trial.benchmarks[benchmark].samples


def row_of(name: str, run: JobRun, launcher: SingleLauncher, benchmark: str) -> Row:
    """The job's row, after its instrumented pass."""
    if run.reason:
        return Row(name=name, reason=run.reason)
    attribution = launcher.call(run_instrumentation, run.job, run.prepared, benchmark)
    return Row(
        name=name,
        seconds=tuple(run.seconds),
        samples=run.samples,
        wait_s=sum(attribution.wait_s),
        epoch_s=attribution.seconds,
    )


def table(rows: list[Row], relative_to_first: bool = False) -> str:
    """A line for each row: samples/s, the gain paired by round with its 95 % interval, and the wait
    per epoch.

    Gains are relative to the previous row that has figures, or, with relative_to_first, to the
    first such row.
    """
    width = max(26, *(len(row.name) + 2 for row in rows))
    heads = f"{'samples/s':>10}  {'gain [95 %]':<20}{'wait, ms an epoch':>18}{'gain':>9}"
    lines = [f"{'':<{width}}{heads}"]
    base: Row | None = None
    for row in rows:
        lines.append(f"{row.name:<{width}}{row.reason or figures(row, base)}")
        if not row.reason and not (base and relative_to_first):
            base = row
    return "\n".join(lines)


def figures(row: Row, base: Row | None) -> str:
    """The row's columns after its name. base: the row to which gains are relative; None for no
    gains."""
    gain = less_wait = ""
    if base is not None:
        gain = f"x {stats.median(base.seconds) / stats.median(row.seconds):.2f}"
        if ratio := stats.ratio(base.seconds, row.seconds):
            gain = f"x {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        less_wait = f"{1e3 * (row.wait_s - base.wait_s):+.1f}"
    wait = f"{1e3 * row.wait_s:.1f} ({100 * row.wait_s / row.epoch_s:.0f} %)"
    return f"{row.samples_per_s:>10,.0f}  {gain:<20}{wait:>18}{less_wait:>9}"
