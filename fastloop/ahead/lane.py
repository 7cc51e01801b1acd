"""A CUDA stream of its own beside the loop's, and what keeps the two apart.

Two things can go wrong between streams, and each shows as wrong values, now and then: the step
reads a batch whose copy has not ended, and a copy overwrites memory that a step is still reading,
because the allocator thinks of one stream alone. An event is for the first, record_stream for the
second; see https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastloop.ahead.leaves import mapped
from fastloop.types import Epochs, Tree

END = object()
"""After the last of what an iterator gives."""

Sent = tuple[Tree, Any]
"""A batch that is on its way, and the event behind its copy; None where nothing is pending."""


class Lane:
    """Where batches are moved: on CUDA beside the loop's stream, elsewhere right here."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begun(self, epochs: Epochs, epoch: int) -> Iterator[Tree]:
        """The epoch's batches, after all that the caller's stream was asked to do so far.

        What a loader puts on the device for a whole epoch (indices, say) is taken on this stream:
        of the caller's, that memory would be given away while a gather is still to read it.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with self._beside():
            return iter(epochs(epoch))

    def sent(self, batches: Iterator[Tree], deliver: Callable[[Tree], Tree]) -> Iterator[Sent]:
        """deliver(batch) for each of them; the loader's own work on the device goes here too."""
        while True:
            with self._beside():
                batch = next(batches, END)
                if batch is END:
                    return
                placed = deliver(batch)
                del batch
                event = None if self._stream is None else self._stream.record_event()
            yield placed, event

    def received(self, placed: Tree, event: Any) -> Tree:
        """The batch; the caller's stream waits for it, and its memory for the caller's stream."""
        if self._stream is not None:
            stream = torch.cuda.current_stream(self._stream.device)
            stream.wait_event(event)
            mapped(lambda leaf: _recorded(leaf, stream), placed)
        return placed

    def _beside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _recorded(leaf: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    if leaf.is_cuda:
        leaf.record_stream(stream)
    return leaf
