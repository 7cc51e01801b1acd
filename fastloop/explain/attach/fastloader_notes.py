"""Collects FastLoader's warnings about arguments of DataLoader that it drops."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

NAMED = "FastLoader"
"""A word of these warnings, but not of those that DataLoader gives as well."""


@contextmanager
def collect_notes(notes: dict[str, None]) -> Iterator[None]:
    """A context in which a FastLoader is made; its sentences become keys of the notes."""
    with warnings.catch_warnings(record=True) as caught:
        # If the script has turned warnings into errors, a warning would end it.
        warnings.simplefilter("always")
        yield
    notes |= {text: None for each in caught if NAMED in (text := str(each.message))}
