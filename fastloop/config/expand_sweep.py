"""Expand the overrides of a sweep into those of each job: all combinations of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hydra.core.override_parser.types import Override, RangeSweep

from fastloop.config.command_line import read_spelling
from fastloop.config.messages import ConfigError

MOST_JOBS = 10_000
"""Maximum number of jobs of a command line, and of values of a range: nobody can measure more, and
a range may have more values than memory holds."""


def expand_jobs(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    """The overrides `key=value` of each job: all combinations of the values of all keys.

    The last override varies fastest. Raises ConfigError for more than MOST_JOBS jobs, and as
    `override_values` does.
    """
    values = override_values(overrides)
    count = math.prod(map(len, values))
    if count > MOST_JOBS:
        raise ConfigError(f"these overrides make {count:,} jobs; allowed: at most {MOST_JOBS:,}")
    return list(itertools.product(*values))


def override_values(overrides: Sequence[Override]) -> list[list[str]]:
    """For each overridden key, a list of `key=value`, one for each value.

    If a key is overridden twice, the last override counts. Raises ConfigError for an override with
    no values or infinitely many, and for a range of more than MOST_JOBS values.
    """
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
    """Raise ConfigError for a range without a step or an end, or of more than MOST_JOBS values."""
    # The count is checked first, because expanding a long range might take all memory.
    values = override.value()
    if not isinstance(values, RangeSweep):
        return
    start, stop, step = values.start or 0, values.stop, values.step
    if not step or stop is None:
        raise ConfigError(f"{override.input_line}: allowed: range(start,stop,step) with a step")
    if not math.isfinite((stop - start) / step):
        raise ConfigError(f"{override.input_line}: allowed: finite numbers")
    count = math.ceil((stop - start) / step)
    if count > MOST_JOBS:
        reason = f"these are {count:,} values; allowed: at most {MOST_JOBS:,}"
        raise ConfigError(f"{override.input_line}: {reason}")
