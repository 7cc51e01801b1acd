"""A colour a loader: its own, and no other's."""

from __future__ import annotations

import re

from options import options

from fastloop.colours import PLACES, colour_of

LOADERS = options("loader")


def test_no_two_loaders_share_a_colour_however_many_there_are():
    many = [*LOADERS, *(f"loader_{number}" for number in range(2 * PLACES))]
    colours = [colour_of(name, many) for name in many]
    assert all(re.fullmatch("#[0-9a-f]{6}", one) for one in colours)
    assert len(set(colours)) == len(many)
    assert len({colour_of(name, LOADERS) for name in (*LOADERS, "mine.make_loader")}) == (
        len(LOADERS) + 1
    )


def test_a_loader_keeps_its_colour_when_others_are_added():
    before = {name: colour_of(name, LOADERS) for name in LOADERS}
    for added in ("a_new_one", "zarr", "mine.make_loader"):
        after = {name: colour_of(name, [*LOADERS, added]) for name in LOADERS}
        moved = [name for name in LOADERS if before[name] != after[name]]
        assert len(moved) <= 2, (added, moved)
    assert colour_of("raw", reversed(LOADERS)) == before["raw"]


def test_every_colour_is_seen_on_white_and_on_black():
    for name in LOADERS:
        parts = bytes.fromhex(colour_of(name, LOADERS)[1:])
        assert 48 < (max(parts) + min(parts)) / 2 < 208
