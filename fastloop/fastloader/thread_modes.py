"""torch's modes of the loop's thread, for the threads that do its work.

torch keeps these modes for each thread, and a new thread has the defaults. Without them the batches
that the loop makes itself would have another dtype than those of the threads, or no gradient if
those have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

AUTOCAST_DEVICES = "cpu", "cuda"


@dataclass(frozen=True)
class ThreadModes:
    """no_grad, autocast and the default device, as a thread has them.

    torch's default dtype is that of all threads.
    """

    is_grad_enabled: bool
    autocasts: Mapping[str, torch.dtype]
    """The dtype of each device for which autocast is on."""
    device: torch.device
    """The device on which new tensors are made, as torch.set_default_device sets it."""

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Inside this context the calling thread has these modes."""
        with torch.set_grad_enabled(self.is_grad_enabled), ExitStack() as stack:
            for device, dtype in self.autocasts.items():
                stack.enter_context(torch.autocast(device, dtype))
            # A new thread has the CPU. Another device costs 1 us for each call of torch, so it is
            # only set if need be.
            if self.device != torch.get_default_device():
                stack.enter_context(self.device)
            yield


def read_modes() -> ThreadModes:
    """The modes of the calling thread."""
    enabled = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    dtypes = {device: torch.get_autocast_dtype(device) for device in enabled}
    return ThreadModes(torch.is_grad_enabled(), dtypes, torch.get_default_device())
