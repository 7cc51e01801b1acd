"""A pass over a loader of a script as `attach` records it, for tests of predictions."""

from __future__ import annotations

from typing import Any

from fastloop.explain.attach.loop_passes import LoaderPass
from fastloop.observe.lane_key import LaneKey, LaneKind


def loader_pass(**fields: Any) -> LoaderPass:
    """The first pass of a script's only loader, with these fields in place of its own."""
    own = {
        "number": 0,
        "loader": 0,
        "process_id": 1,
        "lane": LaneKey(LaneKind.LOOP),
        "start_ns": 0,
        "iter_ns": 0,
        "place": "train.py:9",
        "iterator_made_ns": 0,
        "earlier_passes": 0,
        "pids": (),
    }
    return LoaderPass(**own | fields)
