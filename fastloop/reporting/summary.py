"""Results as a report compares them: groups of jobs that deliver the same data, a row a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastloop import stats
from fastloop.result import Measured, Result, metrics, world_size

UNRANKED = {
    "concurrent": "other work ran beside these trials (allow_concurrent=true)",
    "unverified": "nobody has compared what these jobs deliver (same_data=false)",
}
"""Tags of a job that gets no rank, and why."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job in one benchmark. A figure is None where there are too few values to tell it."""

    label: str
    result: Result
    measured: dict[int, Measured]
    """By round."""
    interval: tuple[float, float] | None
    """95 %, of the median seconds."""
    rank: int | None
    ratio: stats.Ratio | None
    """Seconds to the baseline's seconds, paired by round; None for the baseline itself."""
    limit_fraction: float
    samples_per_s: float
    peak_mib: float | None
    waits_s: tuple[float, ...]

    @property
    def seconds(self) -> list[float]:
        """Of each trial."""
        return [one.seconds for one in self.measured.values()]

    @property
    def median(self) -> float:
        """Median seconds of a trial."""
        return stats.median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One benchmark of the jobs of one group."""

    benchmark: str
    rows: tuple[Row, ...]
    """In the order of the ranking."""
    baseline: str
    """Label of the row that ratios are told against; empty where the group lacks it."""
    undetermined: str
    """Why there are no ranks; empty where there are."""

    def row(self, label: str) -> Row | None:
        """The row with that label."""
        return next((row for row in self.rows if row.label == label), None)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Jobs that deliver the same data in the same amount, in one sweep: these alone are ranked."""

    title: str
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]


def comparable(one: Result, other: Result) -> bool:
    """True for jobs that may be ranked together: they share the data, by where it comes from, by
    what it is or but for decoders that agree, the amount, the cache's state and the rounds."""
    return _work(one) == _work(other) and not _data(one).isdisjoint(_data(other))


def _work(result: Result) -> tuple:
    amount = [result.params.get(name) for name in ("epochs", "drop_last", "cache")]
    # of each rank, so that several leave out more
    amount += [world_size(result) if result.params.get("drop_last") else 1]
    amount += [result.tags.get(tag) for tag in UNRANKED]
    return result.tags.get("sweep"), result.dataset, *amount


def _data(result: Result) -> set[str]:
    return {result.fingerprint, result.content, result.alike} - {""} or {""}


def check_baseline(results: Sequence[Result], baseline: str) -> None:
    """Raise ValueError, naming what is allowed, where no job or loader of that name finished."""
    finished = [result for result in results if result.status == "FINISHED"]
    names = dict.fromkeys([one.loader for one in finished] + [one.name for one in finished])
    if baseline and baseline not in names:
        allowed = ", ".join(names) or "none: no job has finished"
        raise ValueError(f"baseline={baseline}: no such job or loader; allowed: {allowed}")


def summarize(results: Sequence[Result], baseline: str = "") -> list[Group]:
    """The groups among the finished jobs; `baseline` names a job or a loader, or else the
    first."""
    finished = [result for result in results if result.status == "FINISHED" and result.trials]
    wanted = _reference(finished, baseline)
    several = len({result.tags.get("sweep") for result in finished}) > 1
    groups = [_group(members, wanted, several) for members in _grouped(finished)]
    return _shorter_titles(groups)


def _grouped(finished: list[Result]) -> list[list[Result]]:
    """Each with those that it is comparable to, itself or over others."""
    groups: list[list[Result]] = []
    for result in finished:
        near = [group for group in groups if any(comparable(result, one) for one in group)]
        first, *others = near or [[]]
        if not near:
            groups.append(first)
        first += [*(one for group in others for one in group), result]
        groups = [group for group in groups if not any(group is one for one in others)]
    return groups


def _shorter_titles(groups: list[Group]) -> list[Group]:
    """The groups without the words of a setting that all their titles name."""
    words = [{word for word in group.title.split(" ") if "=" in word} for group in groups]
    everywhere = set.intersection(*words) if words else set()
    return [
        replace(group, title=" ".join(w for w in group.title.split(" ") if w not in everywhere))
        for group in groups
    ]


def _reference(finished: list[Result], baseline: str) -> Result | None:
    """The job meant by the baseline; a name goes before a loader."""
    named = [one for one in finished if one.name == baseline]
    named += [one for one in finished if one.loader == baseline]
    return (named or finished or [None])[0]


def _group(results: list[Result], wanted: Result | None, several: bool) -> Group:
    words = [result.name.split(" ")[2:] for result in results]
    shared = [word for word in words[0] if all(word in one for one in words)]
    sweep = [f"({results[0].tags['sweep']})"] if several else []
    labels = {
        result.name: " ".join([result.name.split(" ")[0], *(w for w in own if w not in shared)])
        for result, own in zip(results, words, strict=True)
    }
    names = dict.fromkeys(b for one in results for t in one.trials for b in t.benchmarks)
    base = _baseline_in(results, wanted)
    return Group(
        title=" ".join([results[0].dataset, *shared, *sweep]),
        results=tuple(results),
        comparisons=tuple(_comparison(name, results, labels, base) for name in names),
    )


def _baseline_in(results: list[Result], wanted: Result | None) -> str:
    """Name of this group's counterpart to the wanted job; empty where it has none."""
    if wanted is None:
        return ""
    own = wanted.name.split(" ")[2:]
    same_loader = [one for one in results if one.loader == wanted.loader]
    closest = sorted(same_loader, key=lambda one: -len({*own} & {*one.name.split(" ")[2:]}))
    exact = [one.name for one in results if one.name == wanted.name]
    return (exact + [one.name for one in closest] + [""])[0]


def _comparison(
    benchmark: str, results: list[Result], labels: dict[str, str], base: str
) -> Comparison:
    by_round = {
        result.name: {
            trial.number: trial.benchmarks[benchmark]
            for trial in sorted(result.trials, key=lambda trial: trial.number)
            if benchmark in trial.benchmarks
        }
        for result in results
    }
    by_round = {name: measured for name, measured in by_round.items() if measured}
    ranking = stats.ranking({name: _seconds(one) for name, one in by_round.items()})
    for tag, why in UNRANKED.items():
        if any(tag in result.tags for result in results):
            ranking = replace(ranking, ranks={}, undetermined=why)
    members = {result.name: result for result in results}
    rows = tuple(
        _row(members[name], labels[name], benchmark, by_round, (ranking.ranks.get(name), base))
        for name in ranking.order
    )
    baseline = labels[base] if base in by_round else ""
    return Comparison(
        benchmark=benchmark, rows=rows, baseline=baseline, undetermined=ranking.undetermined
    )


def _row(
    result: Result,
    label: str,
    benchmark: str,
    by_round: dict[str, dict[int, Measured]],
    place: tuple[int | None, str],
) -> Row:
    rank, base = place
    own = by_round[result.name]
    figures = metrics(result)
    seen = result.attribution.get(benchmark)
    return Row(
        label=label,
        result=result,
        measured=own,
        interval=stats.interval(_seconds(own)),
        rank=rank,
        ratio=_paired(own, by_round[base]) if base in by_round and base != result.name else None,
        limit_fraction=figures[f"{benchmark}/limit_fraction"],
        samples_per_s=figures[f"{benchmark}/samples_per_s"],
        peak_mib=figures.get(f"{benchmark}/peak_pss_mib"),
        waits_s=tuple(seen.wait_s) if seen else (),
    )


def _paired(own: dict[int, Measured], base: dict[int, Measured]) -> stats.Ratio | None:
    rounds = sorted(own.keys() & base.keys())
    if not rounds:
        return None
    return stats.ratio([own[k].seconds for k in rounds], [base[k].seconds for k in rounds])


def _seconds(measured: dict[int, Measured]) -> list[float]:
    return [one.seconds for one in measured.values()]
