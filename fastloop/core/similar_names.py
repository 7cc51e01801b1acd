"""Guess the name that a mistyped name was meant to be, for messages."""

from __future__ import annotations

from collections.abc import Iterable


def closest_name(name: str, names: Iterable[str]) -> str:
    """The name in the list that is most similar to `name`, ignoring case; empty if none is
    similar."""
    # Imported here: most commands have no wrong name.
    import difflib

    # Of names that differ only in case, the first one counts.
    by_lower: dict[str, str] = {}
    for each in names:
        by_lower.setdefault(each.lower(), each)
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else ""


def suggest(name: str) -> str:
    """The question whether that name was meant; empty for an empty name."""
    return f"did you mean {name}?" if name else ""
