"""Results of `fastloop.bench` and `fastloop.bench_all`, which show themselves as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fastloop.core import stats
from fastloop.core.number_text import significant
from fastloop.core.ranking import Ranking
from fastloop.core.text_lines import wrap

WIDTH = 80


@dataclass(frozen=True, kw_only=True, repr=False)
class BenchResult:
    """The result of `bench`; printed, or as the last line of a notebook's cell, a few lines."""

    seconds: list[float]
    """Seconds of every trial."""
    epochs: int
    """Epochs in one trial."""
    repeats: int
    """Times that a trial's window repeated these epochs; `seconds` are of one of them."""
    samples: int
    """Samples delivered in one epoch."""
    device: str
    wait_s: list[float]
    """Seconds that the loop waited for each batch of one more epoch; the first includes iter()."""
    epoch_s: float
    """Seconds of the epoch whose waits are in wait_s."""
    limit_samples_per_s: float | None
    """Samples/s that this machine can gather from memory; None where `bench` was given a step."""
    flags: list[str]
    """Caveats of the figures, a line each."""

    @property
    def samples_per_s(self) -> float:
        """Samples per second, the median over trials."""
        return self.epochs * self.samples / stats.median(self.seconds)

    @property
    def samples_per_s_interval(self) -> tuple[float, float] | None:
        """95 % interval of `samples_per_s`; None below three trials."""
        interval = stats.interval(self.seconds)
        delivered = self.epochs * self.samples
        return (delivered / interval[1], delivered / interval[0]) if interval else None

    @property
    def first_batch_s(self) -> float:
        """Seconds from iter() to the first batch."""
        return self.wait_s[0]

    @property
    def wait_fraction(self) -> float:
        """Share of that epoch in which the loop waited for batches."""
        return sum(self.wait_s) / self.epoch_s

    @property
    def limit_fraction(self) -> float | None:
        """Share of what this machine can do; None where `bench` was given a step."""
        limit = self.limit_samples_per_s
        return None if limit is None else self.samples_per_s / limit

    def __repr__(self) -> str:
        waits_s = self.first_batch_s, *(stats.percentile(self.wait_s, p) for p in (50, 95, 99))
        first, *waits = [significant(1e3 * wait_s) for wait_s in waits_s]
        limit = (
            ""
            if self.limit_fraction is None
            else f", {stats.percent(self.limit_fraction)} % of what this machine can gather from "
            "memory"
        )
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        seconds = _bounds(stats.interval(self.seconds), partial(significant, digits=4))
        rate = _bounds(self.samples_per_s_interval, "{:,.0f}".format)
        lines = [
            f"{self.samples:,} samples in {len(self.wait_s):,} batches, {len(self.seconds)} trials "
            f"of {epochs} each, device {self.device}",
            f"{significant(stats.median(self.seconds), 4)} s a trial{seconds}",
            f"{self.samples_per_s:,.0f} samples/s{rate}{limit}",
            f"waits: first batch {first} ms, p50 {waits[0]}, p95 {waits[1]},"
            f" p99 {waits[2]} ms; {100 * self.wait_fraction:.0f} % of an epoch",
            *self.flags,
        ]
        return "\n".join(wrap(lines, WIDTH))


@dataclass(frozen=True, kw_only=True, repr=False)
class Bench:
    """The result of `bench_all`; printed, or as the last line of a notebook's cell, a table."""

    seconds: dict[str, list[float]]
    """Seconds of every trial by loader, in the order of the rounds."""
    rounds: list[list[str]]
    """The order of the loaders in each round."""
    samples: int
    """Samples delivered in one epoch by each loader."""
    ranking: Ranking
    ratios: dict[str, stats.Ratio | None]
    """Ratio of seconds to the first loader's, paired by round; none for the first loader itself."""
    flags: dict[str, list[str]]
    """Caveats of each loader's figures, a line each."""

    def __repr__(self) -> str:
        return "\n".join([_line(self, name) for name in self.ranking.order] + _notes(self))


def _line(bench: Bench, name: str) -> str:
    seconds = bench.seconds[name]
    rank = bench.ranking.ranks.get(name, "?")
    interval = _bounds(stats.interval(seconds), "{:.4f}".format) or " " * 17
    line = f"{name:<20} {rank:>3}  {stats.median(seconds):9.4f} s {interval}"
    ratio = bench.ratios.get(name)
    if ratio is None:
        return line
    bounds = _bounds((ratio.low, ratio.high), "{:.3f}".format)
    if not ratio.is_interval:
        bounds = bounds.replace("[", "(").replace("]", ")")
    return f"{line}  x {ratio.estimate:.3f}{bounds}"


def _notes(bench: Bench) -> list[str]:
    ranking, ratios = bench.ranking, bench.ratios.values()
    tie = f"sharing rank 1: {ranking.needed}" if ranking.needed else ""
    reason = f"undetermined: {ranking.undetermined}" if ranking.undetermined else tie
    is_range = any(ratio and not ratio.is_interval for ratio in ratios)
    unproven = "; (lowest, highest), which prove nothing" if is_range else ""
    lines = [
        *([reason] if reason else []),
        f"rank, median seconds of a trial [95 %], times the first loader's [95 %]{unproven}",
        *(f"{name}: {flag}" for name, flags in bench.flags.items() for flag in flags),
    ]
    return ["", *wrap(lines, WIDTH)]


def _bounds(interval: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    """A space and the interval in brackets; empty without an interval."""
    return f" [{show(interval[0])}, {show(interval[1])}]" if interval else ""
