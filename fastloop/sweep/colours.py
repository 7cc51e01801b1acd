"""Choose the colours of jobs in charts: a loader has the same colour in every sweep; if several
jobs have the same loader, each job of the sweep has its own colour."""

from __future__ import annotations

import colorsys
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from fastloop.sweep.request import JobRequest

SLOTS = 61
"""Number of slots for the hashes of loaders' names; each slot has a colour. It exceeds the number
of loaders, so that few names collide. A name that collides takes the next free slot, which may be
beyond these."""
HUE_STEP = 0.618034
"""Difference in hue between successive slots, as a share of the colour circle: 1 / the golden
ratio, which spreads any number of hues well and repeats none."""
PALETTE = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)
"""matplotlib's and Tableau's ten colours, which are easier to tell apart than colours chosen by a
hash."""
DARKER_FACTOR = 0.6
"""Brightness of each further group of ten jobs, relative to the group before."""
SHADES = 0.36, 0.5, 0.64
"""Lightness of a loader's colour, from 0 to 1; successive slots cycle through these values."""

DISTINCT_DISTANCE = 40.0
"""Minimum `colour_distance` of two colours that a reader can tell apart at a glance."""


def loader_colour(name: str, known: Iterable[str]) -> str:
    """The loader's colour as #rrggbb, by its name; no other known loader has the same colour.

    known: names of the known loaders.
    """
    # All known names get their slots first, in the same order every time, so a collision is
    # resolved in the same way in every sweep.
    slots: dict[str, int] = {}
    for loader in [*sorted(known), name]:
        slot = zlib.crc32(loader.encode()) % SLOTS
        while slot in slots.values():
            slot += 1
        slots.setdefault(loader, slot)
    hue, shade = slots[name] * HUE_STEP % 1, SHADES[slots[name] % len(SHADES)]
    return "#" + "".join(
        f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, shade, 0.7)
    )


def colour_jobs(requests: Sequence[JobRequest]) -> list[JobRequest]:
    """The requests with a colour for each job.

    Each job has its loader's colour. If any two of these are nearly the same, all jobs get the
    colours of their places in the sweep instead.
    """
    colours = [request.colour for request in requests]
    pairs = combinations(colours, 2)
    if all(colour_distance(one, other) >= DISTINCT_DISTANCE for one, other in pairs):
        return [*requests]
    return [replace(each, colour=place_colour(place)) for place, each in enumerate(requests)]


def place_colour(place: int) -> str:
    """The colour, as #rrggbb, of the job at that place in a sweep. The first 30 are distinct."""
    parts = bytes.fromhex(PALETTE[place % len(PALETTE)][1:])
    factor = DARKER_FACTOR ** (place // len(PALETTE) % 3)
    return "#" + "".join(f"{round(factor * part):02x}" for part in parts)


def colour_distance(one: str, other: str) -> float:
    """Euclidean distance of two colours #rrggbb; red, green and blue are numbers from 0 to 255."""
    return math.dist(bytes.fromhex(one[1:]), bytes.fromhex(other[1:]))
