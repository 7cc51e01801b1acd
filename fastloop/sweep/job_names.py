"""Name the jobs of a sweep: by loader, dataset, and the settings that vary between jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from fastloop.sweep.request import JobRequest

NAME_PREFIXES = ("loader=", "dataset=", "loader._target_=", "dataset._target_=")
"""Overrides that a job's name does not repeat, as it begins with their values."""


def job_names(requests: Sequence[JobRequest]) -> list[str]:
    """Names of the jobs: `<loader> <dataset>`, and the overrides that vary in the sweep.

    The charts of MLflow show only the beginning of a name. So the overrides that distinguish a job
    from others with its loader and dataset come first. A setting is named by its last part, such as
    `num_threads=2` for `loader.num_threads=2`, unless another varying setting has the same last
    part.
    """
    beginnings = [f"{each.choices['loader']} {each.choices['dataset']}" for each in requests]
    varying = _varying_overrides(requests)
    settings = {setting for overrides in varying for setting in overrides}
    count_last = Counter(_last_part(setting) for setting in settings)
    alike: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for beginning, overrides in zip(beginnings, varying, strict=True):
        alike[beginning].append(overrides)
    names = []
    for beginning, overrides in zip(beginnings, varying, strict=True):
        # Settings that all jobs of the same loader and dataset share come last.
        shared = {
            setting
            for setting in overrides
            if len({each.get(setting) for each in alike[beginning]}) == 1
        }
        words = [
            _name_word(setting, overrides[setting], is_clear=count_last[_last_part(setting)] == 1)
            for setting in sorted(overrides, key=lambda setting: setting in shared)
        ]
        names.append(" ".join([beginning, *words]))
    return names


def _varying_overrides(requests: Sequence[JobRequest]) -> list[dict[str, str]]:
    """For each request, setting -> override, without the overrides that all requests share."""
    common = set.intersection(*(set(request.overrides) for request in requests))
    return [
        {
            override.lstrip("+").partition("=")[0]: override
            for override in request.overrides
            if override not in common and not override.lstrip("+").startswith(NAME_PREFIXES)
        }
        for request in requests
    ]


def _last_part(setting: str) -> str:
    return setting.rpartition(".")[2]


def _name_word(setting: str, override: str, *, is_clear: bool) -> str:
    """The word of a job's name for an override.

    is_clear: True if no other varying setting has the same last part.
    """
    # `~loader.num_threads=2` removes the setting, whatever its value.
    if setting.startswith("~"):
        return f"~{_last_part(setting).lstrip('~')}" if is_clear else setting
    word = override.lstrip("+")
    return word.removeprefix(setting.removesuffix(_last_part(setting))) if is_clear else word
