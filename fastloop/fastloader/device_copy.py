"""Batches that are copied to a device ahead of their use, concurrently with its other work.

Why no buffer is overwritten while it is copied from: the thread that started a copy keeps its
source tensors, and with them the lease of their buffer (buffers.py), until the CUDA event recorded
after the copy has completed. However an epoch ends, pending copies are waited for once no thread is
left that could start more.

Why no batch is read before its copy is complete, or overwritten while it is read: copy_stream.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.copy_stream import CopyStream, receive_copies

Make = Callable[[Any], Sequence[Tree]]
"""From an item of work to batches."""


@dataclass(frozen=True)
class PendingBatches:
    """Batches on the device whose copies may still be pending."""

    batches: Sequence[Tree]
    tensors: Sequence[torch.Tensor]
    """All tensors of the batches."""
    copied: Any
    """The CUDA event recorded after their copies."""


class DeviceCopies:
    """The host-to-device copies of one epoch, for which each thread has its own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = threading.local()
        """`stream`: the thread's CopyStream; `pairs`: (tensor, copy) of the item being made."""
        self._pending: dict[int, tuple[Any, Sequence[torch.Tensor]]] = {}
        """Thread id -> (event after its last copies, their source tensors)."""

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the device; the copy may still be pending on this thread's stream."""
        copy = tensor.to(self._device, non_blocking=self._device.type == "cuda")
        self._thread.pairs.append((tensor, copy))
        return copy

    def make(self, make: Make, item: Any) -> Sequence[Tree] | PendingBatches:
        """The batches of make(item), which calls `place`."""
        pairs = self._thread.pairs = []
        try:
            if self._device.type != "cuda":  # there, a copy is complete when `to` returns
                return make(item)
            return self._make_pending(make, item, pairs)
        finally:
            del self._thread.pairs  # or they would be held until this thread's next item

    def make_and_place(self, make: Make, item: Any) -> Sequence[Tree] | PendingBatches:
        """The batches of make(item), which does not call `place`; all their tensors are copied."""
        return self.make(lambda item: [self._place_tree(batch) for batch in make(item)], item)

    def receive(
        self, results: Generator[Sequence[Tree] | PendingBatches, None, None]
    ) -> Generator[Sequence[Tree], None, None]:
        """The batches of each result, handed over to the consumer's current stream."""
        received = self._receive(results)
        next(received)
        return received

    def _make_pending(self, make: Make, item: Any, pairs: list[Any]) -> PendingBatches:
        if not hasattr(self._thread, "stream"):
            self._thread.stream = CopyStream(self._device)
        stream = self._thread.stream
        with stream.current():
            try:
                batches = make(item)
            finally:  # make may fail after it has started copies
                copied = stream.record()
                self._keep(copied, [tensor for tensor, _ in pairs])
        return PendingBatches(batches, [copy for _, copy in pairs], copied)

    def _receive(self, results: Generator[Any, None, None]) -> Generator[Any, None, None]:
        try:
            yield None  # started, so that close() and the collector run the `finally` below
            for result in results:
                batches = self._receive_batches(result)
                del result
                yield batches
                del batches
        finally:
            results.close()
            for copied, _ in self._pending.values():
                copied.synchronize()
            self._pending.clear()

    def _receive_batches(self, result: Sequence[Tree] | PendingBatches) -> Sequence[Tree]:
        if not isinstance(result, PendingBatches):
            return result
        receive_copies(result.copied, result.tensors, self._device)
        return result.batches

    def _place_tree(self, batch: Tree) -> Tree:
        return pytree.tree_map_only(torch.Tensor, self.place, batch)

    def _keep(self, copied: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Hold the source tensors of pending copies, of at most one item for each thread."""
        thread = threading.get_ident()
        previous = self._pending.get(thread)
        if previous is not None:
            previous[0].synchronize()  # usually complete: rows have been gathered in the meantime
        self._pending[thread] = copied, tensors


def resolve_target(device: str | torch.device | None) -> torch.device | None:
    """Return the device with its current index; None where batches stay on the CPU.

    Raises ValueError for a CUDA device that torch does not see.
    """
    if device is None or torch.device(device).type == "cpu":
        return None
    target = torch.device(device)
    if target.type != "cuda":
        return target
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (target.index or 0) >= count:
        raise ValueError(f"device={device}: torch sees {count} CUDA devices here")
    # resolved here: in a new thread the current device is always the first one
    return torch.device(
        "cuda", torch.cuda.current_device() if target.index is None else target.index
    )
