"""`benchmark=traversal`: deliver every batch to the device, and do nothing with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fastloop.protocols import Model
from fastloop.trees import tree_leaves
from fastloop.types import Leaves, Setup, Tree, option


def read(batch: Tree) -> int:
    """How many bytes were read: all of the batch's, on the host, at memory speed."""
    nbytes = 0
    for leaf in tree_leaves(batch):
        flat = leaf.contiguous().view(-1).view(torch.uint8).numpy()
        words = len(flat) // 8 * 8
        # A machine word a step: summing single bytes would cost more than fetching them.
        flat[:words].view(np.int64).sum()
        flat[words:].sum()
        nbytes += len(flat)
    return nbytes


@option
class Traversal:
    """Each batch is placed; on a CPU it is also read where its bytes may still lie in a file."""

    limit: ClassVar[Literal["gather", "replay"]] = "gather"

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Any samples will do."""

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """The placement itself, with nothing around it unless bytes may be unread; no losses."""
        if setup.unread:
            return (lambda batch: read(place(batch))), []
        return place, []
