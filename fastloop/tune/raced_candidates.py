"""Choose the candidates that are raced, and the candidates that run first.

A candidate is the present job with a change, see candidates.py. A race has no time for hundreds of
candidates, so the most promising ones are raced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastloop.explain.what_ifs import ChangedJob
from fastloop.trial.job import Job
from fastloop.tune.expected_cost import EXPECTED_COSTS
from fastloop.tune.race import YOURS
from fastloop.tune.surrogate import Surrogate

MOST_RACED = 256
FEWEST_RACED = 8
"""Maximum and minimum number of candidates that are raced, whatever the budget."""
UNPREDICTED = ("loader", "decoder")
"""Settings with effects that the model of a loader can hardly predict, because its input was
measured with the present loader and decoder. The simplest change to each other loader or decoder
runs first. By chance alone, it would hardly get a trial among a thousand combinations of workers,
which the model does predict."""


def choose_raced(
    candidates: Sequence[ChangedJob],
    present: Job,
    predict: Callable[[Job, Sequence[str]], float],
    num_trials: int,
) -> list[ChangedJob]:
    """Choose the most promising candidates: two for each trial that the budget has time for.

    predict: returns the predicted cost of a job with these overrides, in any unit. num_trials:
    number of trials that the budget has time for.
    """
    # With two for each trial, the race can pass over candidates with wrong predictions.
    count = min(max(FEWEST_RACED, 2 * num_trials), MOST_RACED)
    by_name = {each.name: each for each in candidates}
    changes = [(), *(each.change.overrides for each in candidates)]
    jobs = [present, *(each.job for each in candidates)]
    predicted = [*map(predict, jobs, changes)]
    surrogate = Surrogate(names=[YOURS, *by_name], changes=changes, predicted=predicted)
    # The race begins with the simplest changes, so up to half of the list is reserved for them.
    simplest = [surrogate.names[place] for place in choose_simplest(jobs, changes, predicted)]
    names = dict.fromkeys([*simplest[: count // 2], *surrogate.shortlist(count)])
    return [by_name[name] for name in [*names][:count]]


def choose_simplest(
    jobs: Sequence[Job], changes: Sequence[Sequence[str]], predicted: Sequence[float]
) -> list[int]:
    """Choose the simplest change to each loader and decoder, the one with the fewest overrides.

    Returns indices of `jobs`, the most promising first. A loader that needs a store of its own is
    left out: there are a dozen formats of stores, and writing all stores would take the time of
    the race. The loaders of EXPECTED_COSTS, which usually win, are not left out.

    jobs: the configurations, the present one first. changes: the overrides of each configuration.
    predicted: the predicted cost of each configuration.
    """
    simplest: dict[str, int] = {}
    for place, (job, change) in enumerate(zip(jobs, changes, strict=True)):
        writes_store = job.loader.store not in (None, jobs[0].loader.store)
        if writes_store and not EXPECTED_COSTS.keys() & {*change}:
            continue
        for text in change:
            if text.partition("=")[0] not in UNPREDICTED:
                continue
            best = simplest.setdefault(text, place)
            if (len(change), predicted[place]) < (len(changes[best]), predicted[best]):
                simplest[text] = place

    def promise(place: int) -> tuple[float, float]:
        # A loader that usually wins comes first, whatever the model predicts.
        return min(EXPECTED_COSTS.get(text, 1.0) for text in changes[place]), predicted[place]

    return sorted({*simplest.values()}, key=promise)
