"""The guess at the name that a wrong one probably meant, as messages tell it."""

from __future__ import annotations

from collections.abc import Iterable


def closest_name(name: str, names: Iterable[str]) -> str:
    """The one of the names that is most similar to `name`; empty if none is similar."""
    # Imported here: most commands have no wrong name.
    import difflib

    return next(iter(difflib.get_close_matches(name, list(names), n=1)), "")


def suggest(name: str) -> str:
    """The question whether that name was meant; empty for an empty name."""
    return f"did you mean {name}?" if name else ""
