"""A colour for each loader: its own wherever the name comes up, and no other loader's."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

PLACES = 61
"""More than there are names, so that few want the same one; who does takes the next that is free,
also beyond these."""
GOLDEN = 0.618034
"""Of a turn of hue from place to place: neighbours differ most, and it never comes round."""
SHADES = 0.36, 0.5, 0.64


def colour_of(name: str, known: Iterable[str]) -> str:
    """#rrggbb, by the name; never that of one of the known names, which come first."""
    taken: dict[str, int] = {}
    for one in [*sorted(known), name]:
        place = zlib.crc32(one.encode()) % PLACES
        while place in taken.values():
            place += 1
        taken.setdefault(one, place)
    hue, shade = taken[name] * GOLDEN % 1, SHADES[taken[name] % len(SHADES)]
    return "#" + "".join(
        f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, shade, 0.7)
    )
