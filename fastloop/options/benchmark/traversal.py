"""`benchmark=traversal`: deliver every batch to the device; no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fastloop.core.benchmark import Model, Setup
from fastloop.core.trees import read_bytes
from fastloop.core.types import Leaves, Tree, option


@dataclass(frozen=True)
class TraversalSession:
    """A session that only places batches. It keeps nothing from one start to the next."""

    unread: bool
    """True if a batch may be memory-mapped, with bytes that have not been read from the file."""
    ddp: ClassVar[None] = None

    def start(self, place: Callable[[Tree], Tree]) -> tuple[Callable[[Tree], Any], list]:
        """The placement itself, followed by a read if bytes may be unread; no losses."""
        if self.unread:
            return (lambda batch: read_bytes(place(batch))), []
        return place, []


@option
class Traversal:
    """The delivery of each batch to the device, without a model.

    On a CPU, a batch that may be memory-mapped is also read.
    """

    limit: ClassVar[Literal["gather", "replay"]] = "gather"

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Accept any samples."""

    def session(self, setup: Setup) -> TraversalSession:
        """A session without a model."""
        return TraversalSession(setup.unread)
