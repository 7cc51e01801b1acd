"""ThreadModes: torch's modes of the loop's thread, such as no_grad, for threads that do its work.

torch keeps the modes of each thread apart, and a new thread has the defaults. Therefore the loop's
modes are carried to the threads that make batches. Otherwise the threads' batches could differ in
dtype, device or gradient from those that the loop makes itself. The state that torch keeps for each
thread, and whether it is carried:

- carried: grad mode, inference mode, autocast with its dtype and cache, the default device, and
  CUDA's current device and stream
- the loop makes the batches itself: other function modes and dispatch modes. These are a program's
  own, such as a counter of operations, and need not be written for several threads.
- apart for each thread: the number of intra-op threads, see one_torch_thread, and the generator of
  samples that draw, see PrivateDraws
- left out, as no sample is read for it: forward-mode AD, hooks of saved tensors, tracing,
  functorch, and the profiler

The default dtype, deterministic algorithms, anomaly detection and the precision of matrix products
are those of the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fastloop.fastloader.private_draws import is_own_mode

AUTOCAST_DEVICES = "cpu", "cuda", "mps", "xpu"
"""The types of devices for which autocast is carried to other threads."""


@dataclass(frozen=True, kw_only=True)
class ThreadModes:
    """The modes of a thread."""

    is_grad_enabled: bool
    is_inference: bool
    autocasts: Mapping[str, torch.dtype]
    """The dtype of each device for which autocast is on."""
    caches_casts: bool
    """True if autocast keeps the weights that it has converted."""
    device: torch.device | None
    """The device on which new tensors are made, as torch.set_default_device and
    `with torch.device(...)` set it; None: the CPU."""
    stream: Any
    """CUDA's current stream, on the current device; None: a new thread's stream."""
    has_others: bool
    """True if there are other modes, which only this thread can have."""

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Inside this context the calling thread has these modes.

        Inference mode, autocast, the default device and the stream that the thread has already are
        kept if these modes do not name others.
        """
        with ExitStack() as stack:
            if self.is_inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.is_grad_enabled))
            for device, dtype in self.autocasts.items():
                cast = torch.autocast(device, dtype, cache_enabled=self.caches_casts)
                stack.enter_context(cast)
            if self.stream is not None:
                stack.enter_context(torch.cuda.stream(self.stream))
            # The loop's own thread has the default device already, and torch allows only one.
            if self.device is not None and _default_device() is None:
                stack.enter_context(_make_tensors_on(self.device))
            yield


@contextmanager
def _make_tensors_on(device: torch.device) -> Iterator[None]:
    """Make new tensors of this thread on the device."""
    # `with device` would also set a variable of the whole process, and set it back while other
    # threads are still within such a context.
    _push_mode(DeviceContext(device))
    try:
        yield
    finally:
        _pop_mode()


def read_modes() -> ThreadModes:
    """The modes of the calling thread."""
    enabled = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    modes = *_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()
    others = [mode for mode in modes if not isinstance(mode, DeviceContext)]
    return ThreadModes(
        is_grad_enabled=torch.is_grad_enabled(),
        is_inference=torch.is_inference_mode_enabled(),
        autocasts={device: torch.get_autocast_dtype(device) for device in enabled},
        caches_casts=torch.is_autocast_cache_enabled(),
        device=_default_device(),
        stream=_read_stream(),
        has_others=not all(map(is_own_mode, others)),
    )


def _default_device() -> torch.device | None:
    """The device that is set in this thread; None if there is none."""
    for mode in _get_current_function_mode_stack():
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _read_stream() -> Any:
    """CUDA's current stream, or None if a new thread has the same stream."""
    # Asking for the stream would start CUDA.
    if not torch.cuda.is_initialized():
        return None
    stream = torch.cuda.current_stream()
    return None if stream == torch.cuda.default_stream(0) else stream
