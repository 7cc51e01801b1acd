"""Copies to a CUDA device on a separate stream, concurrent with the consumer's work.

Two races between streams lead to occasional wrong values. A step may read a batch before its copy
is complete: an event, for which the consumer's stream waits, prevents that. Or a copy may overwrite
memory that a step is still reading, because torch's allocator knows only the stream on which the
memory was allocated: record_stream prevents that. See
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class CopyStream:
    """The stream on which copies are queued: on CUDA a new one, elsewhere the caller's."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.device = device if self._stream is None else self._stream.device

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread's work is queued on this stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def follow_caller(self) -> None:
        """Let this stream wait for all work queued so far on the caller's stream."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def record(self) -> Any:
        """Record a CUDA event after all work queued so far; None if nothing can be pending."""
        return None if self._stream is None else self._stream.record_event()


def receive_copies(copied: Any, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Hand the tensors over to the caller's stream on the device, without blocking the caller.

    The stream waits for the event `copied`, and the tensors' memory is not reused before all work
    is done that is queued on the stream when they are freed.
    """
    stream = torch.cuda.current_stream(device)
    stream.wait_event(copied)
    for tensor in tensors:
        tensor.record_stream(stream)
