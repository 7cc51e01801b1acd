"""Make the candidates of tuning: the combinations of a space that can run here with this data.

A space has the values to try for each setting. A combination takes a value of each setting, and is
a candidate if the present job can run with these values. For each reason, the combinations that
can't run are counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import starmap
from typing import Any

from fastloop.core.loading_settings import (
    DATALOADER,
    DECLARED,
    LOADING,
    as_override,
    worker_settings,
)
from fastloop.core.types import Unsupported, UsageError
from fastloop.explain.change import Change
from fastloop.explain.what_ifs import ChangedJob
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

CROSSED_FIRST = ("loader", "decoder", "num_workers")
"""Settings that decide whether other settings have an effect, so these are combined first. If a
combination of these settings can't run, it is not combined with the rest."""
NEUTRAL_VALUES: Mapping[str, Any] = {
    **{name: DECLARED[name].default for name in DATALOADER},
    "device_prefetch": 0,
}
"""Setting -> the value that is most likely supported in any combination."""
Choice = tuple[str, ...]
"""The overrides, such as num_workers=2, that choose one value of a setting. For a group, such as
loader, they choose an option of the group together with the option's settings."""
Dimensions = Mapping[str, Sequence[Choice]]
"""Name of a setting or group -> its choices. A combination has one choice of each dimension."""
Values = Mapping[str, Any]
"""Name of a field of Job or of LoadingSettings -> the value that a choice gives to the field."""
Compose = Callable[[Sequence[str]], Job]
"""Returns the job of a list of overrides; raises UsageError for a value that no job can have."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The combinations of a space that may be raced, and the number of the other combinations."""

    found: tuple[ChangedJob, ...]
    """The candidates, without the present configuration."""
    left_out: Mapping[str, int]
    """Reason -> number of the combinations that are left out for this reason."""

    def drop(self, find_reason: Callable[[Job, Change], str]) -> Candidates:
        """Drop candidates; returns the rest, with the dropped ones counted as left out.

        find_reason: returns the reason to drop a candidate; empty: it is kept.
        """
        kept = []
        dropped = Counter[str]()
        for each in self.found:
            if reason := find_reason(each.job, each.change):
                dropped[reason] += 1
            else:
                kept.append(each)
        return Candidates(found=tuple(kept), left_out={**self.left_out, **dropped})


def find_tune_candidates(
    present: Job,
    overrides: Sequence[str],
    space: Mapping[str, Sequence[str]],
    compose: Compose,
) -> Candidates:
    """Find the jobs of all combinations of the space that can run here; count the others by reason.

    overrides: the overrides of the present job. space: name of a setting -> a text name=value for
    each of its values. compose: makes a job of a list of overrides. Raises UsageError for a value
    that no job can have.
    """

    # There may be thousands of combinations, and Hydra, which composes jobs, is slow. So each
    # choice is composed only once. A combination joins the fields that its choices change.
    @cache
    def find_values(choice: Choice) -> Values:
        if not choice:
            return {}
        return _find_values(present, compose(Change(overrides=choice).apply(overrides)))

    settings = {name: [(text,) for text in texts] for name, texts in space.items()}
    dimensions = _in_order(fold_settings(settings, find_values))
    choices = [choice for each in dimensions.values() for choice in each]
    crossing = _Crossing(
        present=present,
        dimensions=dimensions,
        values={choice: find_values(choice) for choice in choices},
    )
    crossing.cross((), [*dimensions])
    found = {each.change.overrides: each for each in crossing.found if each.change.overrides}
    return Candidates(found=tuple(found.values()), left_out=dict(crossing.left_out))


def fold_settings(dimensions: Dimensions, find_values: Callable[[Choice], Values]) -> Dimensions:
    """The dimensions, with settings of options, such as `loader.ahead`, folded into their group.

    The group `loader` then has one choice for each option without this setting. An option with the
    setting becomes several choices, one for each value of the setting. find_values: returns the
    values of a choice; raises UsageError for a choice that no job can have.
    """
    folded = {name: [*choices] for name, choices in dimensions.items() if "." not in name}
    for name, choices in dimensions.items():
        group, dot, _ = name.partition(".")
        if not dot:
            continue
        with_setting: list[Choice] = []
        for option in folded.get(group, [()]):
            try:
                find_values((*option, *choices[0]))
            except UsageError:
                # The option has no such setting.
                with_setting.append(option)
            else:
                with_setting += [(*option, *choice) for choice in choices]
        folded[group] = with_setting
    return folded


@dataclass(kw_only=True)
class _Crossing:
    """The Cartesian product of the dimensions, while it is built."""

    present: Job
    """The job that the choices change."""
    dimensions: Dimensions
    values: Mapping[Choice, Values]
    """The values that each choice changes in the present job."""
    found: list[ChangedJob] = field(default_factory=list)
    """The combinations that can run, as far as they are built."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of the combinations that can't run for this reason."""

    def cross(self, chosen: tuple[Choice, ...], names: Sequence[str]) -> None:
        """Combine the choices `chosen` with all choices of the dimensions `names`; add the jobs."""
        if not names:
            self._add(chosen)
            return
        name, *rest = names
        for choice in self.dimensions[name]:
            combination = (*chosen, choice)
            # If these choices can't run with neutral values, they can't run with any of the rest.
            # One check then replaces the checks of all these combinations.
            if name in CROSSED_FIRST and (reason := self._why_none_runs(combination, rest)):
                self.left_out[reason] += math.prod(len(self.dimensions[each]) for each in rest)
            else:
                self.cross(combination, rest)

    def _why_none_runs(self, chosen: Sequence[Choice], rest: Sequence[str]) -> str:
        """The reason why no combination with these choices can run; empty if one may run.

        rest: names of the dimensions without a choice, which get neutral values.
        """
        neutral = {name: NEUTRAL_VALUES[name] for name in rest if name in NEUTRAL_VALUES}
        job, _ = self._repair(self._apply(chosen, neutral))
        return _why_unsupported(job)

    def _add(self, chosen: Sequence[Choice]) -> None:
        """Add the job of these choices, or count the reason why it can't run."""
        job, repairs = self._repair(self._apply(chosen, {}))
        if reason := _why_unsupported(job):
            self.left_out[reason] += 1
            return
        # Overrides that change nothing in the present job are left out of the change and its name.
        effective = [text for choice in chosen if self.values[choice] for text in choice]
        change = Change(overrides=(*effective, *repairs))
        self.found.append(ChangedJob(change=change, job=job))

    def _apply(self, chosen: Sequence[Choice], values: Values) -> Job:
        """The present job with these values, and with the values of the choices, which take
        precedence."""
        for choice in chosen:
            values = {**values, **self.values[choice]}
        return _with_values(self.present, values)

    def _repair(self, job: Job) -> tuple[Job, list[str]]:
        """Reset the user's settings that this job can't honour, except the settings of the space.

        Returns the job with the default values of these settings, and the overrides that set them.
        """
        # A job with a setting that its loader does not honour is unsupported. For example, the
        # user's prefetch_factor would exclude every candidate without workers.
        honoured = getattr(job.loader, "honours", LOADING)
        names = [
            name for name in DATALOADER if name not in honoured and not DECLARED[name].needs_workers
        ]
        if not job.loading.num_workers or "num_workers" in names:
            names += worker_settings(prefetches_by_process=job.prefetches_by_process)
        values = {
            name: DECLARED[name].default
            for name in names
            if name not in self.dimensions and getattr(job.loading, name) != DECLARED[name].default
        }
        return _with_values(job, values), [*starmap(as_override, values.items())]


def _why_unsupported(job: Job) -> str:
    """The reason why the job can't run here; empty if it can."""
    try:
        check_support(job)
    except Unsupported as error:
        return str(error)
    return ""


def _in_order(dimensions: Dimensions) -> Dimensions:
    """The dimensions, with the settings of CROSSED_FIRST at the beginning."""
    first = [name for name in CROSSED_FIRST if name in dimensions]
    return {name: dimensions[name] for name in dict.fromkeys((*first, *dimensions))}


def _find_values(present: Job, changed: Job) -> Values:
    """The fields of Job and of LoadingSettings in which the jobs differ, with the values of
    `changed`."""
    values = {
        each.name: getattr(changed, each.name)
        for each in fields(Job)  # pyright: ignore[reportArgumentType]
        if each.name != "loading" and getattr(changed, each.name) != getattr(present, each.name)
    }
    for name in LOADING:
        if (value := getattr(changed.loading, name)) != getattr(present.loading, name):
            values[name] = value
    return values


def _with_values(job: Job, values: Values) -> Job:
    """The job with these values of its fields, and of its loading settings."""
    loading = {name: value for name, value in values.items() if name in LOADING}
    others = {name: value for name, value in values.items() if name not in LOADING}
    return replace(job, **others, loading=replace(job.loading, **loading)) if values else job
