"""Why tests of other loaders fail with FastLoader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A cause of failures."""

    text: str
    pattern: str
    """A regular expression that is in a test's name or in the message of its failure."""
    is_internal: bool
    """True where what is tested is the inside of the peer, or the words of its messages."""


CAUSES = (
    Cause("private attributes of DataLoader", r"has no attribute '_|_auto_collation", True),
    Cause("private attributes of its iterator", r"object has no attribute '_workers'", True),
    Cause("isinstance(loader, DataLoader)", r"is not an instance of|isinstance\(", True),
)
