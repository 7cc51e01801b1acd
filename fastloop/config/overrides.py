"""The overrides of a command line: checks, and the values of each in a sweep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import NoneType

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep

from fastloop.config.catalogue import default_options, group_names, settings, takes_several
from fastloop.config.messages import ConfigError
from fastloop.config.spellings import read_spelling

MOST_JOBS = 10_000
"""Most jobs of a command line, and most values of one setting: nobody can measure more, and a range
may have more values than memory holds."""
FOLDERS = ("root", "dir")
"""Last parts of the names of settings that are folders. An empty value would be the working
folder."""

WITHOUT_EFFECT = {
    "hydra.verbose": "fastloop writes no log; HYDRA_FULL_ERROR=1 shows the traceback of an error",
    "hydra/job_logging": "fastloop writes no log; results are files in the outputs folder",
    "hydra/hydra_logging": "fastloop writes no log; results are files in the outputs folder",
}
"""Settings of Hydra that change nothing here, with the reason."""


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """The overrides, parsed. Raises ConfigError for overrides that no job can have."""
    # the parser expands glob(*) by the loader's list of options
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    for override in parsed:
        _check_override(override)
    return parsed


def _check_override(override: Override) -> None:
    """Raise ConfigError if a job would lack a setting or an option."""
    name = override.key_or_group
    if name in WITHOUT_EFFECT:
        raise ConfigError(f"{override.input_line}: it has no effect: {WITHOUT_EFFECT[name]}")
    if override.is_delete():
        if name in {*default_options(), *(setting.name for setting in settings())}:
            reason = f"every job has one; {name}=… changes it"
            raise ConfigError(f"{override.input_line}: {reason}")
    # Hydra merges a list or a dict into the configuration without a word
    elif isinstance(override.value(), list | dict | NoneType) and name in default_options():
        if isinstance(override.value(), list) and override.value() and takes_several(name):
            return
        allowed = f"allowed: one option; several need -m {name}=a,b"
        raise ConfigError(f"{override.input_line}: {allowed}")
    elif override.value() is None and name in group_names():
        reason = "allowed: one option; without it there is none"
        raise ConfigError(f"{override.input_line}: {reason}")
    elif override.value() == "" and name.rpartition(".")[2] in FOLDERS:
        raise ConfigError(f"{override.input_line}: allowed: the path of a folder")


def product(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    """The overrides of each job: all combinations of values; the last override varies fastest.

    Raises ConfigError for more than MOST_JOBS.
    """
    values = override_values(overrides)
    count = math.prod(map(len, values))
    if count > MOST_JOBS:
        raise ConfigError(f"these overrides make {count:,} jobs; allowed: at most {MOST_JOBS:,}")
    return list(itertools.product(*values))


def override_values(overrides: Sequence[Override]) -> list[list[str]]:
    """A list for each overridden key: `key=value` for each of its values. The last override of a
    key wins."""
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [read_spelling(f"{key}={override.get_value_element_as_str()}")]
        elif override.is_discrete_sweep():
            _check_count(override)
            each = override.sweep_string_iterator()
            values[key] = [read_spelling(f"{key}={value}") for value in each]
            if not values[key]:
                raise ConfigError(f"{override.input_line}: it has no values")
        else:
            raise ConfigError(
                f"{override.input_line}: a sweep needs a finite number of values; "
                "allowed: a,b,c, choice(…), range(…) and glob(…)"
            )
    return list(values.values())


def _check_count(override: Override) -> None:
    """Raise ConfigError for a range of more than MOST_JOBS values, and for a range without a
    step."""
    # before the range is expanded, which would take all memory
    values = override.value()
    if not isinstance(values, RangeSweep):
        return
    start, stop, step = values.start or 0, values.stop, values.step
    if not step or stop is None:
        raise ConfigError(f"{override.input_line}: allowed: range(start,stop,step) with a step")
    count = math.ceil((stop - start) / step)
    if count > MOST_JOBS:
        reason = f"these are {count:,} values; allowed: at most {MOST_JOBS:,}"
        raise ConfigError(f"{override.input_line}: {reason}")
