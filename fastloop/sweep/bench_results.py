"""The results of `fastloop.bench` and `fastloop.bench_all`: `BenchResult` and `Bench`.

They print as text, show as a table in a notebook, and convert to JSON and to pandas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from fastloop.core import stats
from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import LoadSummary
from fastloop.core.number_text import TimeUnit, show_fine_percent, significant, unit_of, unit_of_all
from fastloop.core.ranking import NO_RANK, Ranking
from fastloop.core.text import wrap
from fastloop.reporting.notebook_html import notebook_html

if TYPE_CHECKING:
    from pandas import DataFrame

WIDTH = 80
"""Columns of the printed text."""
SCHEMA = 1
"""Version of the JSON format that `to_json` returns."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BenchResult:
    """The result of `bench`. Printed, or as the last line of a notebook's cell, it shows::

        1,797 samples in 29 batches, 5 trials of 1 epoch each, device cpu
        38.82 ms a trial [25.17, 56.4]
        46,285 samples/s [31,860, 71,396], 0.28 % of what this machine can gather from memory
        waits: first batch 4.97 ms, p50 0.203, p95 6.23, p99 7.62 ms; 95 % of an epoch

    A sentence on the load of the machine comes before these lines, and caveats come after them.
    Brackets are 95 % intervals.
    """

    seconds: list[float]
    """Seconds of every trial."""
    epochs: int
    """Epochs in one trial."""
    repeats: int
    """Number of times that a trial's window repeated these epochs; `seconds` are the mean of the
    repeats."""
    samples: int
    """Samples delivered in one epoch."""
    device: str
    wait_s: list[float]
    """Seconds that the loop waited for each batch of one more epoch; the first includes iter()."""
    epoch_s: float
    """Seconds of the epoch with the waits in wait_s."""
    limit_samples_per_s: float | None
    """Samples/s that this machine can gather from memory and, on a GPU, copy to the device; None if
    `bench` was given a step, or if the batches hold texts or lists or differ in shape."""
    flags: list[str]
    """Caveats of the figures, one line each."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the trials."""

    @property
    def samples_per_s(self) -> float:
        """Samples per second, the median over trials."""
        return self.epochs * self.samples / stats.median(self.seconds)

    @property
    def samples_per_s_interval(self) -> tuple[float, float] | None:
        """95 % interval of `samples_per_s`; None below three trials."""
        # The lower bound of the time gives the upper bound of the rate, and the other way round.
        interval = stats.interval(self.seconds)
        delivered = self.epochs * self.samples
        return (delivered / interval[1], delivered / interval[0]) if interval else None

    @property
    def first_batch_s(self) -> float:
        """Seconds from iter() to the first batch."""
        return self.wait_s[0]

    @property
    def wait_fraction(self) -> float:
        """Share of epoch_s in which the loop waited for batches."""
        return sum(self.wait_s) / self.epoch_s

    @property
    def limit_fraction(self) -> float | None:
        """samples_per_s as a share of limit_samples_per_s; None if that is None."""
        limit = self.limit_samples_per_s
        return None if limit is None else self.samples_per_s / limit

    def to_frame(self) -> DataFrame:
        """A row for each trial: its seconds and its samples per second."""
        import pandas as pd

        frame = pd.DataFrame({"seconds": self.seconds})
        frame["samples_per_s"] = self.epochs * self.samples / frame["seconds"]
        return frame.rename_axis("trial")

    def to_json(self) -> str:
        """All fields, and the figures that follow from them, as JSON."""
        figures = {
            "samples_per_s": self.samples_per_s,
            "samples_per_s_interval": self.samples_per_s_interval,
            "first_batch_s": self.first_batch_s,
            "wait_fraction": self.wait_fraction,
            "limit_fraction": self.limit_fraction,
        }
        return json.dumps({"schema": SCHEMA, **asdict(self), **figures}, indent=1) + "\n"

    def _repr_html_(self) -> str:
        first, p50, p95, p99 = self._waits_ms()
        rows = [
            ("", "median", "95 %"),
            (f"{self._unit.name} a trial", self._time(stats.median(self.seconds)), self._bounds()),
            ("samples/s", f"{self.samples_per_s:,.0f}", self._rate_bounds()),
            ("first batch, ms", first, ""),
            ("wait for a batch, ms", p50, f"p95 {p95}, p99 {p99}"),
        ]
        load = describe_load(self.machine_load)
        return notebook_html(self._describe_trials(), rows, self.flags, load)

    def __repr__(self) -> str:
        first, *waits = self._waits_ms()
        limit = ""
        if self.limit_fraction is not None:
            share = show_fine_percent(self.limit_fraction)
            limit = f", {share} of what this machine can gather from memory"
        lines = [
            *describe_load(self.machine_load),
            self._describe_trials(),
            f"{self._time(stats.median(self.seconds))} {self._unit.name} a trial{self._bounds()}",
            f"{self.samples_per_s:,.0f} samples/s{self._rate_bounds()}{limit}",
            f"waits: first batch {first} ms, p50 {waits[0]}, p95 {waits[1]},"
            f" p99 {waits[2]} ms; {100 * self.wait_fraction:.0f} % of an epoch",
            *self.flags,
        ]
        return "\n".join(wrap(lines, WIDTH))

    def _describe_trials(self) -> str:
        """A line with the numbers of samples, batches, trials and epochs, and the device."""
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return (
            f"{self.samples:,} samples in {len(self.wait_s):,} batches, {len(self.seconds)} trials "
            f"of {epochs} each, device {self.device}"
        )

    @property
    def _unit(self) -> TimeUnit:
        return unit_of(stats.median(self.seconds))

    def _time(self, seconds: float) -> str:
        return significant(self._unit.of(seconds), 4)

    def _bounds(self) -> str:
        return _bounds(stats.interval(self.seconds), self._time)

    def _rate_bounds(self) -> str:
        return _bounds(self.samples_per_s_interval, "{:,.0f}".format)

    def _waits_ms(self) -> list[str]:
        """The first wait, and percentiles 50, 95 and 99 of all, in milliseconds."""
        waits_s = self.first_batch_s, *(stats.percentile(self.wait_s, p) for p in (50, 95, 99))
        return [significant(1e3 * wait_s) for wait_s in waits_s]


@dataclass(frozen=True, kw_only=True)
class LoaderTimes:
    """The figures of one loader in a `Bench`."""

    rank: int | None
    """One more than the number of loaders that are surely faster; None if there are no ranks."""
    seconds: list[float]
    """Seconds of the loader's trials, in the order of the rounds."""
    seconds_median: float
    """Median seconds of a trial."""
    seconds_interval: tuple[float, float] | None
    """95 % interval of `seconds_median`; None below three trials."""
    samples_per_s: float
    """Samples per second, the median over trials."""
    ratio: stats.Ratio | None
    """Ratio of the loader's seconds to those of the first loader that `bench_all` was given, paired
    by round; None for the first loader itself."""
    flags: list[str]
    """Caveats of the figures, one line each."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Bench(Mapping[str, LoaderTimes]):
    """The result of `bench_all`: a mapping from the name of each loader to its figures, the fastest
    loader first. Printed, or as the last line of a notebook's cell, it shows::

        FastLoader             1    5.096 ms [2.158, 5.723]     x 0.128 [0.063, 0.171]
        DataLoader             2    34.83 ms [23.6, 57.35]

    The columns are the rank, the median time of a trial, and its ratio to that of the first loader,
    with 95 % intervals. A sentence on the load of the machine comes before them.
    """

    seconds: dict[str, list[float]]
    """Name of a loader -> seconds of its trials, in the order of the rounds."""
    rounds: list[list[str]]
    """The order of the loaders in each round."""
    samples: int
    """Samples delivered in one epoch by each loader."""
    epochs: int
    """Epochs in one trial."""
    ranking: Ranking
    ratios: dict[str, stats.Ratio | None]
    """Name of a loader -> ratio of its seconds to the first loader's, paired by round; the first
    loader itself is missing."""
    flags: dict[str, list[str]]
    """Name of a loader -> caveats of its figures, one line each."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the trials."""

    def __getitem__(self, name: str) -> LoaderTimes:
        seconds = self.seconds[name]
        median = stats.median(seconds)
        return LoaderTimes(
            rank=self.ranking.ranks.get(name),
            seconds=seconds,
            seconds_median=median,
            seconds_interval=stats.interval(seconds, look_share=self.ranking.share),
            samples_per_s=self.epochs * self.samples / median,
            ratio=self.ratios.get(name),
            flags=self.flags[name],
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranking.order)

    def __len__(self) -> int:
        return len(self.seconds)

    def to_frame(self) -> DataFrame:
        """A row for each loader, the fastest first; a figure that does not exist is missing.

        The columns are the rank, the number of trials, the median seconds, and the ratio to the
        first loader of `bench_all`. The seconds and the ratio have the ends of their 95 % intervals
        beside them; below three rounds, those of the ratio's range.
        """
        import pandas as pd

        rows = []
        for name, times in self.items():
            low, high = times.seconds_interval or (None, None)
            ratio = times.ratio
            rows.append(
                {
                    "loader": name,
                    "rank": times.rank,
                    "trials": len(times.seconds),
                    "seconds_median": times.seconds_median,
                    "seconds_low": low,
                    "seconds_high": high,
                    "ratio": ratio.estimate if ratio else None,
                    "ratio_low": ratio.low if ratio else None,
                    "ratio_high": ratio.high if ratio else None,
                }
            )
        # pandas' nullable integers: a loader without a rank would make floats of all ranks.
        return pd.DataFrame(rows).set_index("loader").astype({"rank": "Int64"})

    def to_json(self) -> str:
        """All fields as JSON."""
        ranking = asdict(self.ranking)
        # JSON has no sets.
        ranking["faster"] = {name: sorted(names) for name, names in self.ranking.faster.items()}
        values = {**asdict(self), "ranking": ranking}
        return json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n"

    def _repr_html_(self) -> str:
        unit = _unit_of(self)
        time_title = f"median {unit.name} of a trial [95 %]"
        rows = [("loader", "rank", time_title, "times the first loader's [95 %]")]
        for name, times in self.items():
            show = partial(_time_of, unit=unit)
            time = show(times.seconds_median) + _bounds(times.seconds_interval, show)
            ratio = times.ratio
            factor = f"{ratio.estimate:.3f}{_ratio_bounds(ratio)}" if ratio else ""
            rows.append((name, str(times.rank or NO_RANK), time, factor))
        answer, *notes = _sentences(self)
        return notebook_html(answer, rows, notes, describe_load(self.machine_load))

    def __repr__(self) -> str:
        load = wrap(describe_load(self.machine_load), WIDTH)
        table = [_line(name, times, _unit_of(self)) for name, times in self.items()]
        notes = wrap(_sentences(self), WIDTH)
        return "\n".join([*load, *([""] if load else []), *table, "", *notes])


def _line(name: str, times: LoaderTimes, unit: TimeUnit) -> str:
    """A line of the table: name, rank, time and ratio of a loader."""
    show = partial(_time_of, unit=unit)
    interval = f"{_bounds(times.seconds_interval, show):<18}"
    rank = times.rank or NO_RANK
    line = f"{name:<20} {rank:>3}  {show(times.seconds_median):>7} {unit.name}{interval}"
    if times.ratio is None:
        return line.rstrip()
    return f"{line}  x {times.ratio.estimate:.3f}{_ratio_bounds(times.ratio)}"


def _unit_of(bench: Bench) -> TimeUnit:
    """The unit in which the times of all loaders are shown."""
    # One unit for the whole table, so that its columns can be compared at a glance.
    return unit_of_all([stats.median(seconds) for seconds in bench.seconds.values()])


def _time_of(seconds: float, unit: TimeUnit) -> str:
    return significant(unit.of(seconds), 4)


def _ratio_bounds(ratio: stats.Ratio) -> str:
    """The 95 % interval of a ratio in brackets; below three rounds, the range in parentheses."""
    bounds = _bounds((ratio.low, ratio.high), "{:.3f}".format)
    return bounds if ratio.is_interval else bounds.replace("[", "(").replace("]", ")")


def _sentences(bench: Bench) -> list[str]:
    """The reason for missing ranks or for a tie, if any; a legend of the figures; and caveats."""
    is_range = any(ratio and not ratio.is_interval for ratio in bench.ratios.values())
    unproven = "; (lowest, highest), which prove nothing" if is_range else ""
    reason = _describe_ties(bench.ranking)
    return [
        *([reason] if reason else []),
        f"rank, median time of a trial [95 %], times the first loader's [95 %]{unproven}",
        *(f"{name}: {flag}" for name, flags in bench.flags.items() for flag in flags),
    ]


def _describe_ties(ranking: Ranking) -> str:
    """The reason for missing ranks or for a tie; empty if one loader is first."""
    if ranking.undetermined:
        return f"undetermined: {ranking.undetermined}"
    if ranking.equal:
        return f"as fast as {ranking.order[0]}, within 2 %: {', '.join(ranking.equal)}"
    return f"sharing rank 1: {ranking.needed}" if ranking.needed else ""


def _bounds(interval: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    """A space and the interval in brackets; empty without an interval."""
    return f" [{show(interval[0])}, {show(interval[1])}]" if interval else ""
