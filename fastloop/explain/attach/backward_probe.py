"""Record the losses of a script: the values on which it calls backward()."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from fastloop.explain.attach.loss_comparison import Loss

MOST_LOSSES = 10_000
"""Maximum number of recorded calls of backward(): each loss keeps memory until the end."""


class LossRecorder:
    """Records the calls of backward() between `open` and `close`.

    Recording a call waits for no device: the values are read at the end.
    """

    def __init__(self, batch_number: Callable[[], int]) -> None:
        """batch_number: the number of the loop's batches so far."""
        self._batch_number = batch_number
        self._kept: list[tuple[int, torch.Tensor]] = []
        self._original: Callable[..., None] | None = None
        self._wrapped: Any = None

    def open(self) -> None:
        """Record each call from now on, by Tensor.backward or by torch.autograd.backward."""
        original = torch.autograd.backward

        # Attributes of torch's own function, which dynamo may have set, are not copied.
        @functools.wraps(original, updated=())
        def backward(tensors: Any, *args: Any, **named: Any) -> None:
            if self._wrapped:
                self._keep(tensors)
            original(tensors, *args, **named)

        self._original, self._wrapped = original, backward
        # Inside of a compiled step torch would compile this function, too, and at each call again.
        if sys.modules.get("torch._dynamo"):
            self._wrapped = torch.compiler.disable(backward)
        # Tensor.backward calls the function of this name.
        torch.autograd.backward = self._wrapped

    def close(self) -> None:
        """Record no further call."""
        # The script may have put a function of its own around this one.
        if self._original and torch.autograd.backward is self._wrapped:
            torch.autograd.backward = self._original
        self._original = self._wrapped = None

    def read(self) -> list[Loss]:
        """The recorded losses, without those that are not real numbers."""
        losses: list[Loss] = []
        for batch, value in self._kept:
            with suppress(Exception):
                losses.append((batch, float(value)))
        return losses

    def _keep(self, tensors: Any) -> None:
        # Anything else, such as a generator, can be read only once.
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        for each in given:
            if isinstance(each, torch.Tensor) and len(self._kept) < MOST_LOSSES:
                # A copy, because the script may change the loss in place later. A kind of tensor
                # that can't be copied must not stop the script.
                with suppress(Exception):
                    if each.numel() == 1:
                        self._kept.append((self._batch_number(), each.detach().clone()))
