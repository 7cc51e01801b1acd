"""The memory of batches that threads make ahead of the loop: how much there is, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

AHEAD_BYTES = 64 << 20
"""Maximum size of the batches of an epoch that are made ahead, in bytes, see BytesAhead."""
NUMBER_NBYTES = 32
"""Approximate bytes of a Python number."""
MOST_PARTS, MOST_ITEMS = 512, 32
"""An estimate looks at MOST_PARTS parts of a batch at most. It looks at MOST_ITEMS items at most of
a list that has only items of SMALL_TYPES, or more items than the estimate has room for: counting
all of 8,000 texts would take as long as reading them."""
SMALL_TYPES = frozenset((str, bytes, int, float))
"""Types of items that count little each."""
RECHECK_S = 1.0
"""A waiting thread asks again after this time whether the epoch has ended."""
NEWEST_SHARE = 1 / 8
"""The weight of the newest batch in the size of a usual one."""


def count_nbytes(batches: Any) -> int | None:
    """The bytes of batches; None if they have parts other than tensors, arrays, texts and numbers.

    >>> count_nbytes([{"x": torch.zeros(2, 3)}, b"four"])
    28
    """
    total = 0
    for leaf in pytree.tree_leaves(batches):
        nbytes = _leaf_nbytes(leaf)
        if nbytes is None:
            return None
        total += nbytes
    return total


def _leaf_nbytes(leaf: Any) -> int | None:
    """The bytes of a leaf; None for a leaf of a kind that is not counted."""
    # Tensors come last: checking for one takes longer than all other checks.
    if isinstance(leaf, bytes | str):
        return len(leaf)
    if isinstance(leaf, int | float | np.generic):
        return NUMBER_NBYTES
    if isinstance(leaf, np.ndarray):
        return None if leaf.dtype.hasobject else leaf.nbytes
    is_dense = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    return leaf.numel() * leaf.element_size() if is_dense else None


def estimate_nbytes(batches: Any) -> int:
    """The approximate number of bytes of batches, found in less than a millisecond.

    All parts of a level of the tree are counted before the parts of the level below, so that a
    large tensor beside many small parts is not left out. If a list is long, or if there are more
    parts than an estimate looks at, only some parts are counted, and each stands for its
    neighbours. Parts of kinds that count_nbytes does not count are left out.

    >>> estimate_nbytes((["four"] * 1000, object()))
    4000
    """
    total = 0.0
    num_left = MOST_PARTS
    level = [(batches, 1.0)]
    while level:
        nodes = []
        for part, weight in level:
            items = _list_items(part)
            if items is None:
                total += weight * (_leaf_nbytes(part) or 0)
            elif items:
                nodes.append((items, weight))
        num_left -= len(level)
        # The other half is for the levels below.
        level = _choose_parts(nodes, num_left // 2)
    return round(total)


def _choose_parts(
    nodes: Sequence[tuple[Sequence[Any], float]], most: int
) -> list[tuple[Any, float]]:
    """At most `most` items of these nodes, each with the number of parts that it stands for.

    nodes: (the items of a node, the number of nodes that it stands for).
    """
    if not nodes or not most:
        return []
    looked_at = nodes[:: -(-len(nodes) // most)]
    share = most // len(looked_at)
    chosen = []
    for items, weight in looked_at:
        # Types are looked at much faster than sizes.
        is_long = len(items) > share or (
            len(items) > MOST_ITEMS and {*map(type, items)} <= SMALL_TYPES
        )
        some = items[:: -(-len(items) // min(share, MOST_ITEMS)) if is_long else 1]
        num_parts = weight * len(items) / len(some) * len(nodes) / len(looked_at)
        chosen += [(item, num_parts) for item in some]
    return chosen


def _list_items(part: Any) -> Sequence[Any] | None:
    """The items of a node of a tree; None for a leaf."""
    if isinstance(part, list | tuple):
        return part
    if isinstance(part, dict):
        return list(part.values())
    # Tensordicts, for example, are registered there.
    node = pytree.SUPPORTED_NODES.get(type(part))
    return None if node is None else list(node.flatten_fn(part)[0])


@dataclass
class UsualSize:
    """The size of a loader's usual batch, judging by its batches so far."""

    nbytes: float = 0.0
    """Bytes of a usual batch; 0.0 until the first batch has been noted."""

    def note(self, nbytes: int) -> None:
        """Note the size of a batch."""
        self.nbytes += (nbytes - self.nbytes) * (NEWEST_SHARE if self.nbytes else 1)


class BytesAhead:
    """A limit on the results that threads make ahead: a thread waits until it may make another.

    Results that are ready count with their own size, and results that are being made count with the
    usual size. If their sum would exceed AHEAD_BYTES with a new item, none is begun except the next
    `least` items. A few large results among small ones therefore do not stop the threads. If
    results grow, those made ahead have at most AHEAD_BYTES, apart from the ones that threads are
    making when the growth begins.
    """

    def __init__(self, least: int, usual: UsualSize) -> None:
        self._least = least
        self._usual = usual
        # Its lock is reentrant, as the collector may end the epoch in a thread that holds it.
        self._changed = Condition()
        self._num_received = self._num_making = self._ready_nbytes = 0
        self._is_ended = False

    def begin(self, number: int) -> bool:
        """Wait until the item with this number may be made; False if the epoch has ended."""
        with self._changed:
            while not self._is_ended and not self._may_begin(number):
                # The collector may call end() in this thread, just before it waits.
                self._changed.wait(RECHECK_S)
            self._num_making += 1
            return not self._is_ended

    def _may_begin(self, number: int) -> bool:
        # The loop may be waiting for the next item, which must never wait for later ones.
        if number < self._num_received + self._least:
            return True
        nbytes = self._ready_nbytes + (self._num_making + 1) * self._usual.nbytes
        return nbytes <= AHEAD_BYTES

    def finish(self, result: Any) -> int:
        """Note that an item has been made, and return the approximate number of bytes of its
        result."""
        nbytes = 0
        # A batch must not fail because of an estimate: a user's class may raise anything.
        with suppress(Exception):
            nbytes = estimate_nbytes(result)
        with self._changed:
            self._num_making -= 1
            self._ready_nbytes += nbytes
            self._usual.note(nbytes)
            self._changed.notify_all()
        return nbytes

    def receive(self, nbytes: int) -> None:
        """Note that the loop has received a result of this size."""
        with self._changed:
            self._num_received += 1
            self._ready_nbytes -= nbytes
            self._changed.notify_all()

    def end(self) -> None:
        """End the epoch: waiting threads return at once, and begin no further item."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
