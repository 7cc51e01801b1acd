"""What the jobs of a sweep are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.config import Composed

NAMED = ("loader=", "dataset=", "loader._target_=", "dataset._target_=")
"""Overrides that a job's name begins with already."""


def names_of(composed: Sequence[Composed]) -> list[str]:
    """`<loader> <dataset>`, and whatever else varies in the sweep."""
    everywhere = set.intersection(*(set(one.overrides) for one in composed))
    names = []
    for one in composed:
        own = [
            o for o in one.overrides if o not in everywhere and not o.lstrip("+").startswith(NAMED)
        ]
        names.append(" ".join([one.choices["loader"], one.choices["dataset"], *own]))
    return names
