"""The guess at the name that a wrong one probably meant, as messages tell it."""

from __future__ import annotations

from collections.abc import Iterable


def closest_name(name: str, names: Iterable[str]) -> str:
    """The one of the names that is most similar to `name`, whatever its case; empty if none is."""
    # Imported here: most commands have no wrong name.
    import difflib

    # Of names that differ in their case alone, the one that is written first counts.
    by_lower: dict[str, str] = {}
    for each in names:
        by_lower.setdefault(each.lower(), each)
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else ""


def suggest(name: str) -> str:
    """The question whether that name was meant; empty for an empty name."""
    return f"did you mean {name}?" if name else ""
