"""A probe of a DataLoader: wraps its dataset and functions so that every process records its work.

DataLoader itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate

from fastloop.core.parts import Part
from fastloop.observe.event_log import NATIVE_LANE, EventLog
from fastloop.observe.probed import ProbedCall, ProbedCollate, ProbedDataset

ONLY_EPOCH = 0
"""Number of the pass in a log of a single pass: batches of a known pass have the loop's numbers."""


@dataclass(frozen=True)
class Probe:
    """Wraps the parts of a DataLoader; plain data."""

    log: EventLog
    fetch: Part = Part.DECODE
    """The stage of fetching samples from the dataset."""

    def wrap_dataset(self, dataset: Any) -> Any:
        """The dataset with an event for each fetch; a datapipe is returned unchanged."""
        # torch walks through the graph of a datapipe, which a wrapper would hide.
        is_pipe = isinstance(dataset, IterDataPipe | MapDataPipe)
        return dataset if is_pipe else ProbedDataset(dataset, self.fetch, self.log)

    def wrap_collate(self, collate_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """The function, or default_collate for None, with an event for each batch."""
        return ProbedCollate(collate_fn or default_collate, self.log)

    def wrap_read(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """The dataset's function that reads a file, with an event for each call in the fetch."""
        return ProbedCall(read, Part.READ, self.log)

    def wrap_transform(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a sample, with an event for each call in the fetch."""
        return ProbedCall(transform, Part.TRANSFORM, self.log)

    def add_pieces(self, pieces: np.ndarray) -> None:
        """Record the work of threads that run no Python, for the only epoch of this log.

        pieces: int64 (pieces, 4), each row the thread (0: the loop's), batch, start and stop.
        """
        for thread, batch, start_ns, stop_ns in pieces.tolist():
            lane = self.log.lane(f"{NATIVE_LANE} {thread}") if thread else self.log.here()
            lane.add(self.fetch, start_ns, stop_ns, batch, ONLY_EPOCH)
