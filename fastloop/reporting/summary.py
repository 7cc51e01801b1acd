"""Summarize results: group the jobs with the same data, and rank each group in each benchmark.

Tables, charts and verdicts are made from these groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastloop.core import stats
from fastloop.core.auto_trials import AUTO
from fastloop.core.limit import LimitOrigin, typical_origin
from fastloop.core.ranking import Ranking, rank_jobs
from fastloop.core.result import Measurement, Result, verdict_word
from fastloop.core.tracked_metrics import metrics
from fastloop.reporting.baseline import find_baseline, no_baseline_message
from fastloop.reporting.comparable import (
    UNRANKED,
    benchmarks_by_round,
    brings_data,
    partition,
)
from fastloop.reporting.short_names import short_names, split_name

DEFAULT_COLOUR = "#0072b2"
"""Colour of jobs without a colour in their result."""
RAW = "raw"
"""The loader that reads the dataset itself."""
LONGEST_LIST = 3
"""Maximum number of loaders that a title names."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of one job in one benchmark; a figure is None if there are too few values for it."""

    label: str
    """Short name of the job."""
    result: Result
    by_round: dict[int, Measurement]
    """The job's trials of this benchmark by round number, ascending."""
    interval_s: tuple[float, float] | None
    """95 % interval of `median_s`, in seconds."""
    rank: int | None
    """Rank of the job; None without ranks."""
    faster: frozenset[str]
    """Labels of the jobs that are surely faster."""
    ratio: stats.Ratio | None
    """Seconds / the baseline's seconds, paired by round; None for the baseline itself, without a
    baseline, and if the two jobs share no round."""
    limit_fraction: float | None
    """Median share of the machine's limit; None without a limit."""
    samples_per_s: float
    peak_mib: float | None
    waits_s: tuple[float, ...]
    """Time that the loop waited for each batch of the instrumented epoch."""
    why: str = ""
    """The word of the verdict on the job, if it was explained in this benchmark; else empty."""

    @property
    def colour(self) -> str:
        """The job's colour in all charts, #rrggbb."""
        # Anybody may have edited the tag, and the colour goes into the page's markup.
        colour = self.result.tags.get("mlflow.runColor", "")
        return colour if re.fullmatch("#[0-9a-f]{6}", colour) else DEFAULT_COLOUR

    @property
    def limit_origin(self) -> LimitOrigin | None:
        """Kind and engine of the limit in most trials; None without a limit and in older files."""
        return typical_origin([trial.limit_origin for trial in self.by_round.values()])

    @property
    def seconds(self) -> list[float]:
        """Seconds of each trial."""
        return _seconds(self.by_round)

    @property
    def median_s(self) -> float:
        """Median seconds of a trial."""
        return stats.median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows of the jobs of one group in one benchmark."""

    benchmark: str
    rows: tuple[Row, ...]
    """The rows in ranking order."""
    baseline: str
    """Label of the row that ratios refer to; empty if this group has no such row."""
    undetermined: str
    """Reason why there are no ranks; empty if there are ranks."""
    enough_trials: int
    """The approximate number of trials that would tell apart the jobs of rank 1; 0 if it is not
    known, or if one job leads."""
    equal: tuple[str, ...]
    """Labels of the jobs that are surely as fast as the first one."""
    look_share: float | None
    """See `Ranking.share`."""

    def row(self, label: str) -> Row | None:
        """The row with that label; None if there is none."""
        return next((row for row in self.rows if row.label == label), None)


@dataclass(frozen=True, kw_only=True)
class JobGroup:
    """Jobs of one sweep that deliver the same amount of the same data, and so can be ranked."""

    title: str
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]
    """One comparison for each benchmark."""


def check_baseline(results: Sequence[Result], baseline: str) -> None:
    """Raise ValueError with the allowed names if no job or loader of that name finished."""
    finished = [result for result in results if result.status == "FINISHED"]
    if baseline and not _find_named(finished, baseline):
        short = short_names(finished)
        loaders = {job.name: job.loader for job in finished}
        names = {label: loaders[name] for name, label in short.items()} | loaders
        raise ValueError(no_baseline_message(names, baseline))


def summarize(results: Sequence[Result], baseline: str = "") -> list[JobGroup]:
    """Group the finished jobs. `baseline` names a job or a loader; empty: see `_reference`."""
    finished = [result for result in results if result.status == "FINISHED" and result.trials]
    reference = _reference(results, finished, baseline)
    several = len({result.tags.get("sweep") for result in finished}) > 1
    # Titles omit the settings that all jobs share.
    of_all = set.intersection(*({*_settings(result)} for result in finished)) if finished else set()
    return [_group(members, reference, several, of_all) for members in partition(finished)]


def _reference(results: Sequence[Result], finished: list[Result], baseline: str) -> Result | None:
    """The job that ratios refer to; None if no job has finished.

    The first of these that has finished: the job that `baseline` or the sweep's setting names, the
    job that was typed first, the loader `raw`, any other job.
    """
    setting = str(results[0].params.get("baseline") or "") if results else ""
    for name in (baseline, setting):
        if name and (named := _find_named(finished, name)):
            return named[0]
    # The list is empty if the job that was typed first has failed.
    first = [result for result in finished if result is results[0]]
    raw = [result for result in finished if result.loader == RAW]
    return (first + raw + finished + [None])[0]


def _find_named(finished: list[Result], baseline: str) -> list[Result]:
    """The jobs that the baseline names, in full, by loader, or by their name in the table."""
    names = find_baseline({result.name: result.loader for result in finished}, baseline)
    short = short_names(finished)
    names += [name for name, label in short.items() if label == baseline]
    by_name = {result.name: result for result in finished}
    return [by_name[name] for name in names]


def _group(
    results: list[Result], reference: Result | None, several: bool, of_all: set[str]
) -> JobGroup:
    """The group of these jobs. several: True if there are several sweeps. of_all: settings that all
    jobs of all groups share."""
    settings = [_settings(result) for result in results]
    shared = [word for word in settings[0] if all(word in others for others in settings)]
    shared = [word for word in shared if word not in of_all]
    sweep = [f"({results[0].tags['sweep']})"] if several else []
    labels = short_names(results)
    base = _baseline_name(results, reference)
    measured = benchmarks_by_round(results)
    return JobGroup(
        title=" ".join([_data_name(results), *shared, *sweep]),
        results=tuple(results),
        comparisons=tuple(
            _comparison(name, results, labels, base, trials) for name, trials in measured.items()
        ),
    )


def _data_name(results: list[Result]) -> str:
    """The dataset's name; for loaders that bring their data, with the loaders' names."""
    name = results[0].dataset
    if not brings_data(results[0]):
        return name
    loaders = [*dict.fromkeys(result.loader for result in results)]
    if len(loaders) > LONGEST_LIST:
        loaders = [*loaders[: LONGEST_LIST - 1], f"{len(loaders) - LONGEST_LIST + 1} others"]
    return f"{name} of {' and '.join(', '.join(loaders).rsplit(', ', 1))}"


def _settings(result: Result) -> list[str]:
    """The `setting=value` words of a job's name, which follow loader and dataset."""
    return split_name(result.name)[2:]


def _baseline_name(results: list[Result], reference: Result | None) -> str:
    """Name of the reference in this group, or else of the job of its loader that shares most
    settings with it; empty if there is none."""
    if reference is None:
        return ""
    words = {*_settings(reference)}
    same_loader = [result for result in results if result.loader == reference.loader]
    # A group of other data, such as of another batch size with `batches`, has its own baseline. The
    # sort is stable: of equally close jobs, the one that was typed first.
    closest = sorted(same_loader, key=lambda result: -len(words & {*_settings(result)}))
    exact = [result.name for result in results if result.name == reference.name]
    return (exact + [result.name for result in closest] + [""])[0]


def _comparison(
    benchmark: str,
    results: list[Result],
    labels: dict[str, str],
    base: str,
    trials: dict[str, dict[int, Measurement]],
) -> Comparison:
    """The rows of these jobs in a benchmark, ranked and in ranking order."""
    in_looks = any(result.params.get("trials") == AUTO for result in results)
    seconds = {name: _seconds(by_round) for name, by_round in trials.items()}
    ranking = rank_jobs(seconds, in_looks=in_looks)
    # The jobs of a group all have these tags or none; without ranks the order of medians stays.
    for tag, reason in UNRANKED.items():
        if any(tag in result.tags for result in results):
            ranking = Ranking(
                ranks={},
                undetermined=reason,
                needed="",
                order=ranking.order,
                share=ranking.share,
            )
    members = {result.name: result for result in results}
    rows = tuple(
        replace(
            _row(members[name], labels[name], benchmark, trials, base, ranking.share),
            rank=ranking.ranks.get(name),
            faster=frozenset(labels[other] for other in ranking.faster.get(name, ())),
        )
        for name in ranking.order
    )
    return Comparison(
        benchmark=benchmark,
        rows=rows,
        baseline=labels[base] if base in trials else "",
        undetermined=ranking.undetermined,
        enough_trials=ranking.enough_trials,
        equal=tuple(labels[name] for name in ranking.equal),
        look_share=ranking.share,
    )


def _row(
    result: Result,
    label: str,
    benchmark: str,
    trials: dict[str, dict[int, Measurement]],
    base: str,
    look_share: float | None,
) -> Row:
    """The row of a job, without the figures that come from a ranking."""
    by_round = trials[result.name]
    figures = metrics(result)
    attribution = result.attribution.get(benchmark)
    has_ratio = base in trials and base != result.name
    return Row(
        label=label,
        result=result,
        by_round=by_round,
        interval_s=stats.interval(_seconds(by_round), look_share=look_share),
        rank=None,
        faster=frozenset(),
        ratio=ratio_by_round(by_round, trials[base], look_share) if has_ratio else None,
        limit_fraction=figures.get(f"{benchmark}/limit_fraction"),
        samples_per_s=figures[f"{benchmark}/samples_per_s"],
        peak_mib=figures.get(f"{benchmark}/peak_pss_mib"),
        waits_s=tuple(attribution.wait_s) if attribution else (),
        why=verdict_word(result, benchmark),
    )


def ratio_by_round(
    new: dict[int, Measurement], base: dict[int, Measurement], look_share: float | None
) -> stats.Ratio | None:
    """The ratio of seconds over the rounds that both jobs have; None if there are none.

    look_share: see `Ranking.share`.
    """
    rounds = sorted(new.keys() & base.keys())
    lists = [[each[number].seconds for number in rounds] for each in (new, base)]
    return stats.ratio_or_range(*lists, look_share=look_share)


def _seconds(by_round: dict[int, Measurement]) -> list[float]:
    return [trial.seconds for trial in by_round.values()]
