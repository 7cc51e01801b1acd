"""Colours of loaders: one for each loader, whichever others there are."""

from __future__ import annotations

import re

from options import options

from fastloop.sweep.colours import SLOTS, loader_colour

LOADERS = options("loader")


def test_loader_colours_are_unique_for_any_number_of_loaders():
    names = [*LOADERS, *(f"loader_{number}" for number in range(2 * SLOTS))]
    colours = [loader_colour(name, names) for name in names]
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert len(set(colours)) == len(names)
    assert len({loader_colour(name, LOADERS) for name in (*LOADERS, "mine.make_loader")}) == (
        len(LOADERS) + 1
    )


def test_loader_keeps_its_colour_when_others_are_added():
    before = {name: loader_colour(name, LOADERS) for name in LOADERS}
    for added in ("a_new_one", "zarr", "mine.make_loader"):
        after = {name: loader_colour(name, [*LOADERS, added]) for name in LOADERS}
        moved = [name for name in LOADERS if before[name] != after[name]]
        assert len(moved) <= 2, (added, moved)
    assert loader_colour("raw", reversed(LOADERS)) == before["raw"]


def test_loader_colour_is_visible_on_white_and_on_black():
    for name in LOADERS:
        parts = bytes.fromhex(loader_colour(name, LOADERS)[1:])
        assert 48 < (max(parts) + min(parts)) / 2 < 208
