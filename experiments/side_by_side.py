"""Named jobs in rounds, a fresh process a trial, without Hydra and without a tracker."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastloop import stats
from fastloop.job import Job, check_support
from fastloop.launchers.single import Single
from fastloop.prepared import prepare
from fastloop.schedule import rounds
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_trial
from fastloop.types import JobFailed, Prepared, Unsupported


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one job gave."""

    name: str
    reason: str = ""
    """Why there are no figures; empty where there are."""
    seconds: tuple[float, ...] = ()
    """Of each trial, by round."""
    samples: int = 0
    """Delivered in a trial."""
    wait_s: float = 0.0
    """What the loop waited for batches in one further epoch; with its first batch."""
    epoch_s: float = 0.0
    """Length of that epoch."""

    @property
    def samples_per_s(self) -> float:
        """Median over trials."""
        return self.samples / stats.median(self.seconds)


def measured_rows(jobs: Mapping[str, Job], benchmark: str, trials: int) -> list[Row]:
    """A row a job, in their order; one that can't be run here has its reason."""
    launcher = Single(isolation="forkserver")
    found: dict[str, Row] = {}
    prepared: dict[str, Prepared] = {}
    for name, job in jobs.items():
        try:
            check_support(job)
            arguments = job.dataset, job.loader.store, job.collate.tolerant
            prepared[name] = launcher.call(prepare, *arguments)
        except Unsupported as why:
            found[name] = Row(name=name, reason=f"unsupported: {why}")
        except JobFailed as failure:
            found[name] = Row(name=name, reason=failure.reason)
    names = list(prepared)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    samples: dict[str, int] = {}
    for number, places in enumerate(rounds([trials] * len(names))):
        for name in (names[place] for place in places):
            if name in found:
                continue
            try:
                trial = launcher.call(run_trial, jobs[name], prepared[name], number, now_ns())
            except JobFailed as failure:
                found[name] = Row(name=name, reason=failure.reason)
                continue
            one = trial.benchmarks[benchmark]
            seconds[name].append(one.seconds)
            samples[name] = one.samples
    for name in names:
        if name not in found:
            seen = launcher.call(run_instrumented, jobs[name], prepared[name], benchmark)
            found[name] = Row(
                name=name,
                seconds=tuple(seconds[name]),
                samples=samples[name],
                wait_s=sum(seen.wait_s),
                epoch_s=seen.seconds,
            )
    return [found[name] for name in jobs]


def table(rows: list[Row], to_the_first: bool = False) -> str:
    """samples/s, times the last row with figures (paired by round, 95 %), and waits; to_the_first:
    times the first such row instead."""
    wide = max(26, *(len(row.name) + 2 for row in rows))
    heads = f"{'samples/s':>10}  {'gain [95 %]':<20}{'wait, ms an epoch':>18}{'gain':>9}"
    lines = [f"{'':<{wide}}{heads}"]
    before: Row | None = None
    for row in rows:
        if row.reason:
            lines.append(f"{row.name:<{wide}}{row.reason}")
            continue
        gain = less = ""
        if before is not None:
            found = stats.ratio(before.seconds, row.seconds)
            times = stats.median(before.seconds) / stats.median(row.seconds)
            gain = f"x {times:.2f}"
            if found:
                gain = f"x {found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"
            less = f"{1e3 * (row.wait_s - before.wait_s):+.1f}"
        share = f"{1e3 * row.wait_s:.1f} ({100 * row.wait_s / row.epoch_s:.0f} %)"
        figures = f"{row.samples_per_s:>10,.0f}  {gain:<20}{share:>18}{less:>9}"
        lines.append(f"{row.name:<{wide}}{figures}")
        before = before if before and to_the_first else row
    return "\n".join(lines)
