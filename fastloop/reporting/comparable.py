"""Decide which jobs may be ranked together: those that do the same work with the same data.

`partition` divides results into groups of such jobs. Verdicts, tables and the suite use it, and
`is_sweep_decided` tells a sweep with trials=auto whether it may end.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.ranking import ROUNDS_OF_NO_RANKING, is_decided
from fastloop.core.result import Measurement, Result, world_size
from fastloop.core.user_code import LOADER_DATA

UNRANKED = {
    "concurrent": "other work ran concurrently with these trials (allow_concurrent=true)",
    "unverified": "the data that these jobs deliver was not compared (same_data=false)",
}
"""Tag of a result -> the reason why a job with this tag gets no rank."""


def comparable(result: Result, other: Result) -> bool:
    """True if the two jobs may be ranked together.

    Both jobs must have the same amount of work, cache state, sweep, name of the dataset, tags of
    UNRANKED, and data. Two jobs have the same data if the sources or the samples are equal, or if
    the decoders differ but are equivalent. A loader that brings its own data is never ranked with a
    loader that was compared with a dataset.
    """
    return _work(result) == _work(other) and delivers_same(result, other)


def brings_data(result: Result) -> bool:
    """True for the job of a loader that brings its own data instead of reading a dataset.

    The data of such a job was compared only with the job's own first epoch.
    """
    return result.params.get("dataset._target_") == LOADER_DATA


def delivers_same(result: Result, other: Result) -> bool:
    """True if the two jobs deliver the same samples, or differ in equivalent decoders only."""
    return not _data_ids(result).isdisjoint(_data_ids(other))


def _work(result: Result) -> tuple[object, ...]:
    """The values, apart from the data, that jobs must share to be ranked together."""
    values = [result.params.get(name) for name in ("epochs", "batches", "drop_last", "cache")]
    # The batch size counts only if epochs are cut to a number of batches: the first ten batches of
    # 64 samples are more work than the first ten of 32.
    values += [result.params.get("batch_size") if result.params.get("batches") else None]
    # With drop_last, each rank drops its incomplete batch, so more ranks deliver fewer samples.
    values += [world_size(result) if result.params.get("drop_last") else 1]
    values += [result.tags.get(tag) for tag in UNRANKED]
    return result.tags.get("sweep"), result.dataset, brings_data(result), *values


def _data_ids(result: Result) -> set[str]:
    """The ids of the data that a job delivers; jobs that share an id deliver the same data."""
    # An empty id is unknown, so it is left out. A job without any id gets the set {""}, so that two
    # such jobs count as equal.
    return {result.fingerprint, result.content, result.decoder_equivalence_id} - {""} or {""}


def partition(results: Sequence[Result]) -> list[list[Result]]:
    """Divide the results into groups of jobs that may be ranked together.

    The groups are the connected components of the relation `comparable`.
    """
    groups: list[list[Result]] = []
    left = [*range(len(results))]
    while left:
        group = [left.pop(0)]
        # `comparable` is not transitive: a job may have the source of one job and the samples of
        # another. So the group grows while the loop looks at its members.
        for member in group:
            near = [each for each in left if comparable(results[each], results[member])]
            left = [each for each in left if each not in near]
            group += near
        groups.append([results[each] for each in sorted(group)])
    return groups


def _is_unranked(results: Sequence[Result]) -> bool:
    """True if one of these jobs has a tag that excludes it from ranks."""
    return any(tag in result.tags for result in results for tag in UNRANKED)


def benchmarks_by_round(results: Sequence[Result]) -> dict[str, dict[str, dict[int, Measurement]]]:
    """Benchmark -> name of a job -> number of a round, ascending -> the job's measurement.

    A job has one trial in each round, and the trial has the number of the round.
    """
    found: dict[str, dict[str, dict[int, Measurement]]] = {}
    for result in results:
        for trial in sorted(result.trials, key=lambda trial: trial.number):
            for benchmark, measured in trial.benchmarks.items():
                by_job = found.setdefault(benchmark, {})
                by_job.setdefault(result.name, {})[trial.number] = measured
    return found


def has_ranking(results: Sequence[Result]) -> bool:
    """True if any of these jobs may be ranked together."""
    return any(len(group) > 1 and not _is_unranked(group) for group in partition(results))


def is_sweep_decided(results: Sequence[Result]) -> bool:
    """True if a sweep with trials=auto needs no more rounds.

    The trials then decide the ranking of all jobs in each benchmark, or have reached the maximum
    number of rounds. Jobs without a ranking to decide need ROUNDS_OF_NO_RANKING rounds.
    """
    return all(_is_group_decided(group) for group in partition(results))


def _is_group_decided(results: Sequence[Result]) -> bool:
    """True if a group of jobs that may be ranked together needs no more rounds."""
    # Without ranks there is nothing to decide, so such jobs end after a fixed number of rounds.
    if _is_unranked(results):
        return min(len(result.trials) for result in results) >= ROUNDS_OF_NO_RANKING
    measured = benchmarks_by_round(results)
    seconds = [
        {name: [each.seconds for each in trials.values()] for name, trials in jobs.items()}
        for jobs in measured.values()
    ]
    return bool(seconds) and all(map(is_decided, seconds))
