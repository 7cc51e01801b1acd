"""Decide which jobs may be ranked together: they have to do the same work with the same data."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.ranking import ROUNDS_OF_NO_RANKING, is_decided
from fastloop.core.result import Measurement, Result, world_size
from fastloop.core.user_code import LOADER_DATA

UNRANKED = {
    "concurrent": "other work ran concurrently with these trials (allow_concurrent=true)",
    "unverified": "the data that these jobs deliver was not compared (same_data=false)",
}
"""Reason why a job gets no rank, by the tag that marks the job."""


def comparable(result: Result, other: Result) -> bool:
    """True if the two jobs may be ranked together.

    They have to agree in amount of work, cache state, sweep and data. Data agrees if its source or
    its content is equal, or if only the decoders differ and are equivalent. A loader that brings
    its own data is never ranked with a loader that was compared with a dataset.
    """
    return _work(result) == _work(other) and delivers_same(result, other)


def brings_data(result: Result) -> bool:
    """True for a loader that brings its own data; it was compared with its own first epoch only."""
    return result.params.get("dataset._target_") == LOADER_DATA


def delivers_same(result: Result, other: Result) -> bool:
    """True if the two jobs deliver the same samples, or differ in equivalent decoders only."""
    return not _data_ids(result).isdisjoint(_data_ids(other))


def _work(result: Result) -> tuple[object, ...]:
    """The amount and kind of a job's work, its sweep, and the tags that bar it from ranks."""
    values = [result.params.get(name) for name in ("epochs", "batches", "drop_last", "cache")]
    # The first ten batches of 64 samples are more work than the first ten of 32.
    values += [result.params.get("batch_size") if result.params.get("batches") else None]
    # Every rank drops its last batch, so more ranks deliver fewer samples.
    values += [world_size(result) if result.params.get("drop_last") else 1]
    values += [result.tags.get(tag) for tag in UNRANKED]
    return result.tags.get("sweep"), result.dataset, brings_data(result), *values


def _data_ids(result: Result) -> set[str]:
    """The ids of what a job delivers; jobs that share one deliver the same data."""
    # An empty id means that the id is unknown, and matches no other id. Two jobs without ids count
    # as alike.
    return {result.fingerprint, result.content, result.decoder_equivalence_id} - {""} or {""}


def partition(results: Sequence[Result]) -> list[list[Result]]:
    """Divide the results into groups: connected components of the relation `comparable`."""
    groups: list[list[Result]] = []
    left = [*range(len(results))]
    while left:
        group = [left.pop(0)]
        # `comparable` is not transitive: a job may agree with one job in source, and with another
        # in content. So the group grows while its members are looked at.
        for member in group:
            near = [each for each in left if comparable(results[each], results[member])]
            left = [each for each in left if each not in near]
            group += near
        groups.append([results[each] for each in sorted(group)])
    return groups


def _is_unranked(results: Sequence[Result]) -> bool:
    return any(tag in result.tags for result in results for tag in UNRANKED)


def benchmarks_by_round(results: Sequence[Result]) -> dict[str, dict[str, dict[int, Measurement]]]:
    """Benchmark -> name of a job -> number of a round, ascending -> the job's trial."""
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
    """True if these trials decide the ranking of all jobs in each benchmark, or if trials=auto
    allows no more rounds."""
    return all(_is_group_decided(group) for group in partition(results))


def _is_group_decided(results: Sequence[Result]) -> bool:
    """True if the trials decide the ranking of these jobs, which may be ranked together."""
    # Jobs that get no ranks never have a decided ranking.
    if _is_unranked(results):
        return min(len(result.trials) for result in results) >= ROUNDS_OF_NO_RANKING
    measured = benchmarks_by_round(results)
    seconds = [
        {name: [each.seconds for each in trials.values()] for name, trials in jobs.items()}
        for jobs in measured.values()
    ]
    return bool(seconds) and all(map(is_decided, seconds))
