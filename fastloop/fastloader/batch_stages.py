"""The stages of a batch that Python makes: gather, transform, pin, copy to a device, receive.

Batches that are made together form a group, which each stage takes from the stage before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data._utils.pin_memory import pin_memory

from fastloop.core.current_batch import current_batch
from fastloop.core.torch_threads import one_torch_thread
from fastloop.fastloader.column_source import ColumnSource, RowsToFill
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.device_copy import DeviceCopies
from fastloop.fastloader.failed_batch import FailedBatch, refuse_stop, try_batch
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.process_batches import ProcessBatches
from fastloop.fastloader.thread_map import UNFINISHED, Part

Group = Sequence[np.ndarray]
"""The indices of batches that are made together."""
Batches = BatchSource | StreamBatches | ProcessBatches
"""An object that makes the batches of a group."""
MadeBatches = Sequence[Tree | FailedBatch]
"""The batches of a group; an error takes the place of a batch that has failed."""
Transform = Callable[[Tree, list[int]], Tree]
"""(batch, indices of its samples) -> the delivered batch."""


class StagedGroup(NamedTuple):
    """A group of batches that has passed some of the stages."""

    group: Group
    number: int
    """The number of its first batch in the epoch, from 0 on."""
    num_done: int = 0
    """Number of stages that the group has passed."""
    made: Any = None
    """The result of the last of these stages; after all stages, the batches."""

    def after(self, made: Any, group: Group | None = None) -> StagedGroup:
        """The group after another stage, which has made `made`, perhaps for other indices."""
        indices = self.group if group is None else group
        return StagedGroup(indices, self.number, self.num_done + 1, made)


@dataclass
class NumberedGroups:
    """The groups of an epoch, each with the number of its first batch."""

    groups: Iterator[Group]
    number: int = 0
    """The number of the next group's first batch."""

    def __iter__(self) -> NumberedGroups:
        return self

    def __next__(self) -> StagedGroup:
        group = next(self.groups)
        staged = StagedGroup(group, self.number)
        self.number += len(group)
        return staged


Stage = Callable[[StagedGroup], StagedGroup]
"""A group that has passed the stages before -> the group after this one."""
Results = Generator[StagedGroup, None, None]


def pass_stages(staged: StagedGroup, stages: Sequence[Stage]) -> StagedGroup:
    """The group after all of these stages, of which it has already passed `num_done`."""
    # A sample of another loader may iterate over this one: the number of its batch is kept.
    current = current_batch()
    outside = current.number
    current.number = staged.number
    try:
        for stage in stages[staged.num_done :]:
            staged = stage(staged)
        return staged
    finally:
        current.number = outside


@dataclass(frozen=True)
class Gather:
    """Read the samples of each batch. The error of a batch takes its place."""

    source: Batches

    def __call__(self, staged: StagedGroup) -> StagedGroup:
        """The batches of a Dataset, of an iterable, of processes, or of columns."""
        if isinstance(self.source, ProcessBatches):
            # If any order will do, these may be the batches of other indices.
            return staged.after(*self.source.take(len(staged.group)))
        if isinstance(self.source, ColumnSource):
            return staged.after(read_columns(self.source, staged.group))
        return staged.after(self.source.batches(staged.group))


def read_columns(source: ColumnSource, group: Group) -> MadeBatches:
    """The batches of a group: all at once, and one by one if one of them fails."""
    return _replace_failed(source, try_batch(source.batches, group), group)


def _replace_failed(
    source: ColumnSource, batches: MadeBatches | FailedBatch, group: Group
) -> MadeBatches:
    """The batches of a group; if they have failed together, each is read by itself."""
    if not isinstance(batches, FailedBatch):
        return batches
    if len(group) == 1:
        return [batches]
    return [batch for indices in group for batch in read_columns(source, [indices])]


@dataclass(frozen=True)
class GatherRows:
    """Read the rows of all batches of a group as one tensor per column, so that a group needs one
    copy to a device per column."""

    source: ColumnSource

    def __call__(self, staged: StagedGroup) -> StagedGroup:
        """The rows of each column."""
        return staged.after(self.source.gather(staged.group))


@dataclass(frozen=True)
class ApplyTransform:
    """Apply the user's transform to each batch that has not failed."""

    transform: Transform
    may_end: bool
    """True: an iterable may end within a group, which then has fewer batches than lists of
    indices."""

    def __call__(self, staged: StagedGroup) -> StagedGroup:
        """The transformed batches; the error of a transform takes its batch's place."""
        pairs = zip(staged.made, staged.group, strict=not self.may_end)
        apply = partial(try_batch, self._apply)
        return staged.after([apply(batch, indices.tolist()) for batch, indices in pairs])

    def _apply(self, batch: Tree, indices: list[int]) -> Tree:
        if isinstance(batch, FailedBatch):
            return batch
        try:
            return self.transform(batch, indices)
        except StopIteration as error:
            raise refuse_stop("the transform", indices) from error


def pin(staged: StagedGroup) -> StagedGroup:
    """Move each batch to pinned memory, unless it was gathered there."""
    pinned = [pytree.tree_map(_pin_leaf, batch, is_leaf=_pins_itself) for batch in staged.made]
    return staged.after(pinned)


def _pins_itself(node: Any) -> bool:
    return hasattr(node, "pin_memory")


def _pin_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf if leaf.is_pinned() else leaf.pin_memory()
    # A user's class may have a pin_memory(), and a mapping need not be a dict: DataLoader's
    # function handles both.
    return pin_memory(leaf)


@dataclass(frozen=True)
class CopyToDevice:
    """Queue the copies of batches, or of rows, to the device."""

    copies: DeviceCopies

    def __call__(self, staged: StagedGroup) -> StagedGroup:
        """The tree on the device, with the event that its copies end with."""
        return staged.after(self.copies.copy(staged.made))


@dataclass(frozen=True)
class ReceiveCopies:
    """Hand copies over to the loop's stream. Only the loop's thread does this stage."""

    copies: DeviceCopies

    def __call__(self, staged: StagedGroup) -> StagedGroup:
        """The tree on the device, which the loop may use at once."""
        return staged.after(self.copies.receive(staged.made))


@dataclass(frozen=True)
class SplitRows:
    """Split the rows of a group into its batches. Only the loop's thread does this stage."""

    source: ColumnSource

    def __call__(self, staged: StagedGroup) -> StagedGroup:
        """The batches."""
        return staged.after(self.source.split(staged.made, staged.group))


class DividedGather:
    """Gathers the rows of a group of slow columns in parts, each of which one thread makes.

    The first batch is then ready as soon as all threads together can make it, and each batch is
    finished before later ones. No thread waits for another: the one that makes the last part goes
    on with the other stages.
    """

    def __init__(self, source: ColumnSource, staged: StagedGroup, go_on: Stage) -> None:
        self._source = source
        self._go_on = go_on
        self._staged = staged
        self._group = staged.group
        self._lock = threading.Lock()
        self._rows = None
        self._failures: dict[int, FailedBatch] = {}
        self._num_left = 0

    def divide(self, num_parts: int) -> list[Part]:
        """At most `num_parts` parts. The part that is made last returns the group's result."""
        num_rows = sum(map(len, self._group))
        step = max(1, -(-num_rows // num_parts))
        # A user's batch sampler may ask for an empty batch: it has one empty part.
        starts = range(0, num_rows, step) or range(1)
        self._num_left = len(starts)
        return [partial(self._make, start, start + step) for start in starts]

    def _make(self, start: int, stop: int) -> Any:
        # OpenMP's threads wait for each other, and one busy core holds up all of them.
        with one_torch_thread():
            failure = try_batch(self._fill, start, stop)
        with self._lock:
            if failure is not None:
                self._failures[start] = failure
            self._num_left -= 1
            if self._num_left:
                return UNFINISHED
        return self._go_on(self._staged.after(self._batches()))

    def _fill(self, start: int, stop: int) -> None:
        with torch.inference_mode(False):
            # The thread that comes first allocates the memory, and another one waits for that.
            with self._lock:
                if self._rows is None:
                    self._rows = self._source.allocate(self._group)
                rows: RowsToFill = self._rows
            # Fast columns are not divided: the first part fills them.
            if not start:
                rows.fill_fast()
            rows.fill_slow(slice(start, stop))

    def _batches(self) -> MadeBatches:
        if self._failures:
            # The error of the first part counts, as if the rows had been read one after the other.
            batches: Any = self._failures[min(self._failures)]
            # The traceback of an error refers to this object: a cycle would keep the rows' memory.
            self._failures.clear()
        else:
            assert self._rows is not None
            batches = try_batch(self._source.split, self._rows.tensors, self._group)
        return _replace_failed(self._source, batches, self._group)
