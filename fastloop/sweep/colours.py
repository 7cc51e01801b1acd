"""A colour for each loader: the same in every sweep, and different from other loaders'."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

SLOTS = 61
"""Number of hash slots, more than there are loaders, so that few names collide. On a collision a
name takes the next free slot, which may be beyond these."""
GOLDEN = 0.618034
"""Step in hue between slots, in turns. The golden ratio: neighbours differ most, no hue repeats."""
SHADES = 0.36, 0.5, 0.64
"""Lightness of a colour, by slot."""


def loader_colour(name: str, known: Iterable[str]) -> str:
    """The loader's colour as #rrggbb, by its name; differs from the colours of the known names."""
    slots: dict[str, int] = {}
    for loader in [*sorted(known), name]:
        slot = zlib.crc32(loader.encode()) % SLOTS
        while slot in slots.values():
            slot += 1
        slots.setdefault(loader, slot)
    hue, shade = slots[name] * GOLDEN % 1, SHADES[slots[name] % len(SHADES)]
    return "#" + "".join(
        f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, shade, 0.7)
    )
