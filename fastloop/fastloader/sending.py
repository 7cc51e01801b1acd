"""Batches that are copied to a device ahead of their use, beside whatever it does.

Why no buffer is written to while it is copied from: the thread that has asked for a copy keeps the
tensors that are copied, and with them the lease of their buffer (buffers.py), until the event
behind the copy has come; at the end of an epoch, whatever ends it, those that are still under way
are waited for once no thread is left that could ask for more.

Why no batch is read before it is there, or written to while it is read: the consumer's stream waits
for that event, and torch's allocator is told that this stream uses memory that another one has
taken, so that it is not given away before the work queued there is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns import Tree

Make = Callable[[Any], Sequence[Tree]]
"""From a block to its batches."""


@dataclass(frozen=True)
class Sent:
    """A block's batches on the device, and what tells that they are there."""

    batches: Sequence[Tree]
    tensors: Sequence[torch.Tensor]
    copied: Any
    """torch.cuda.Event."""


class Sending:
    """The copies of one epoch, by every thread on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = threading.local()
        self._under_way: dict[int, tuple[Any, Sequence[torch.Tensor]]] = {}

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """It on the device; the copy may still be under way, on this thread's stream."""
        copy = tensor.to(self._device, non_blocking=self._device.type == "cuda")
        self._own.pairs.append((tensor, copy))
        return copy

    def made(self, make: Make, block: Any) -> Sequence[Tree] | Sent:
        """What make(block) gives, which calls `placed`."""
        pairs = self._own.pairs = []
        try:
            if self._device.type != "cuda":  # a copy that is done once it has returned
                return make(block)
            return self._beside(make, block, pairs)
        finally:
            del self._own.pairs  # or they would be held until this thread's next block

    def _beside(self, make: Make, block: Any, pairs: list[Any]) -> Sent:
        stream = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            try:
                batches = make(block)
            finally:  # what fails may fail behind copies that are under way
                copied = stream.record_event()
                self._keep(copied, [tensor for tensor, _ in pairs])
        return Sent(batches, [copy for _, copy in pairs], copied)

    def moved(self, make: Make, block: Any) -> Sequence[Tree] | Sent:
        """The same of a make that does not call `placed`: every tensor of its batches is copied."""
        return self.made(lambda one: [self._tree(batch) for batch in make(one)], block)

    def received(
        self, blocks: Generator[Sequence[Tree] | Sent, None, None]
    ) -> Generator[Sequence[Tree], None, None]:
        """The batches of each, for the stream that is current in the consumer's thread."""
        received = self._received(blocks)
        next(received)
        return received

    def _received(self, blocks: Generator[Any, None, None]) -> Generator[Any, None, None]:
        try:
            yield None  # begun, so that close() and the collector come to what has to be waited for
            for made in blocks:
                batches = self._joined(made)
                del made
                yield batches
                del batches
        finally:
            blocks.close()
            for copied, _ in self._under_way.values():
                copied.synchronize()
            self._under_way.clear()

    def _joined(self, made: Sequence[Tree] | Sent) -> Sequence[Tree]:
        if not isinstance(made, Sent):
            return made
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(made.copied)
        for tensor in made.tensors:
            tensor.record_stream(stream)
        return made.batches

    def _tree(self, batch: Tree) -> Tree:
        return pytree.tree_map_only(torch.Tensor, self.placed, batch)

    def _keep(self, copied: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Hold them while they are copied, and with them one block more at most."""
        me = threading.get_ident()
        before = self._under_way.get(me)
        if before is not None:
            before[0].synchronize()  # the next rows were gathered beside it: it is done, mostly
        self._under_way[me] = copied, tensors


def target_of(device: str | torch.device | None) -> torch.device | None:
    """The device that is meant now; None where batches stay on the CPU.

    Raises ValueError where torch has no such device here.
    """
    if device is None or torch.device(device).type == "cpu":
        return None
    target = torch.device(device)
    if target.type != "cuda":
        return target
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (target.index or 0) >= count:
        raise ValueError(f"device={device}: torch sees {count} CUDA devices here")
    # a thread's own current device is always the first one
    return torch.device(
        "cuda", torch.cuda.current_device() if target.index is None else target.index
    )
