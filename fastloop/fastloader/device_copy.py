"""DeviceCopies, which copies batches to a device ahead of their use, beside the device's work.

No memory is overwritten while it is copied from. A block of pinned memory that has been freed is
reused by torch's allocator only after all copies from it are complete. For other memory, the
copying call returns only after CUDA has taken the bytes.

Copies to a CUDA device run on a stream of their own. Two races between streams lead to occasional
wrong values. A step may read a batch before its copy is complete: an event that the consumer's
stream waits for prevents that. Or a copy may overwrite memory that a step is still reading, because
torch's allocator knows only the stream on which the memory was allocated: record_stream prevents
that. See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.column import Tree


class CopyStream:
    """The stream on which copies are queued: on CUDA a new one, elsewhere the caller's."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.device = device if self._stream is None else self._stream.device

    def as_current(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread's work is queued on this stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def follow_caller(self) -> None:
        """Make this stream wait for all work queued so far on the caller's stream."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def record(self) -> Any:
        """Record a CUDA event after all work queued so far; None if nothing can be pending."""
        return None if self._stream is None else self._stream.record_event()


def receive_copies(event: Any, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Hand the tensors over to the caller's stream on the device, without blocking the caller.

    The stream waits for the event. After the tensors are freed, their memory is reused only when
    all work that was queued on the stream by then is done.
    """
    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for tensor in tensors:
        tensor.record_stream(stream)


class Copied(NamedTuple):
    """A tree on the device, with copies that may still be pending."""

    tree: Tree
    event: Any
    """The CUDA event recorded after the copies; None: they are complete."""


class DeviceCopies:
    """The host-to-device copies of one epoch, for which each thread has its own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = threading.local()

    def on_stream(self) -> AbstractContextManager[Any]:
        """The context of the calling thread's stream, in which copy() is called."""
        return self._stream.as_current()

    def copy(self, tree: Tree) -> Copied:
        """Queue copies of the tree's tensors."""
        placed = pytree.tree_map_only(torch.Tensor, self._place, tree)
        return Copied(placed, self._stream.record())

    def receive(self, copied: Copied) -> Tree:
        """The tree, handed over to the consumer's current stream."""
        placed, event = copied
        if event is not None:
            tensors = [leaf for leaf in pytree.tree_leaves(placed) if torch.is_tensor(leaf)]
            receive_copies(event, tensors, self._device)
        return placed

    @property
    def _stream(self) -> CopyStream:
        if not hasattr(self._thread, "stream"):
            self._thread.stream = CopyStream(self._device)
        return self._thread.stream

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        # Only CUDA has the streams and events that make an unfinished copy safe.
        return tensor.to(self._device, non_blocking=self._device.type == "cuda")
