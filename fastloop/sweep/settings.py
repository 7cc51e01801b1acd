"""Settings of a sweep as a whole: the top-level settings that belong to no single job."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from fastloop.core.types import option


def _check_list(changes: Any) -> Any:
    """The changes as they are. Raises ValueError if they are not a list."""
    # pydantic would take a text for a sequence of characters.
    if not isinstance(changes, list | tuple):
        raise ValueError("allowed: a list of overrides, as \"what_if=['batch_size=128']\"")
    return changes


@option
class SweepSettings:
    """Settings of a sweep that are not settings of its jobs.

    The comments in conf/config.yaml state the meaning, unit, allowed values and default of each.
    """

    baseline: str | None
    interleave: bool
    report: bool
    resume: str | None
    retry_failed: bool
    wait: bool
    allow_concurrent: bool
    profile: bool
    explain: bool = False
    what_if: Annotated[tuple[str, ...], Strict(False), BeforeValidator(_check_list)] = ()
    tries: Annotated[int, Field(ge=0, le=10, alias="try")] = 3
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


ALIASES = {"tries": "try"}
"""Name of a field -> name of its setting, if they can't be equal: `try` is a keyword."""
SWEEP_SETTINGS = tuple(
    ALIASES.get(field.name, field.name)
    for field in fields(SweepSettings)  # pyright: ignore[reportArgumentType]
)
