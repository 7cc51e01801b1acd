"""`placement=jax`: jax.device_put, with tensors exchanged by DLPack."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils.dlpack import DLDeviceType

from fastloop.core.move_tensors import split_tensors
from fastloop.core.optional_libraries import Library
from fastloop.core.text import first_line
from fastloop.core.types import Tree, Unsupported, option

LIBRARY = Library("jax", "placement=jax", "pip install 'fastloop[jax]'")
PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}
"""jax's platforms by torch's type of the device."""


@option
class JaxPlacement:
    """A single jax.device_put of all tensors of a batch, converted to jax and back by DLPack.

    The conversion itself does not copy. On CUDA each array is cloned on the device. Without the
    clone, jax would reuse the memory as soon as torch frees it, although torch's stream may still
    read it. The clone waits for jax's copy, so code that waits for torch's stream, such as
    pinned_buffers, waits for both.

    jax starts threads, so processes must not be forked afterwards.
    """

    runs_threads: ClassVar[bool] = True
    non_blocking: bool
    """True: the placement does not wait for the copies."""

    def check_installed(self) -> None:
        """Raise Unsupported if jax is not installed."""
        LIBRARY.check()

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to a tree of the same types, with its tensors on the device.

        Raises Unsupported without jax or if jax lacks the device; the function raises it for leaves
        that can't be moved.
        """
        # By default jax allocates most of the GPU's memory at once, and would leave none to torch.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = LIBRARY.load()
        target = _device(jax, device)
        wait = not self.non_blocking
        to_torch = _share_memory if device.type == "cpu" else _CopiedArrays()

        def place(tree: Tree) -> Tree:
            tensors, join = split_tensors(tree, device)
            # Without enable_x64, jax would turn int64 into int32.
            with jax.enable_x64(True):
                arrays = [_array(jax, tensor) for tensor in tensors]
                moved = jax.device_put(arrays, target)
            if wait:
                jax.block_until_ready(moved)
            return join(to_torch(moved))

        return place


def _share_memory(arrays: list[Any]) -> list[torch.Tensor]:
    """The arrays as tensors over the same memory."""
    return [torch.from_dlpack(array) for array in arrays]


class _CopiedArrays:
    """Converts jax arrays to copies in torch's memory; keeps the arrays until they are copied."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, list[Any]]] = deque()

    def __call__(self, arrays: list[Any]) -> list[torch.Tensor]:
        # Arrays are dropped as soon as torch's stream has copied them, without waiting for it.
        while self._pending and self._pending[0][0].query():
            self._pending.popleft()
        clones = [torch.from_dlpack(array).clone() for array in arrays]
        if clones:
            stream = torch.cuda.current_stream(clones[0].device)
            self._pending.append((stream.record_event(), arrays))
        return clones


class _HostTensor:
    """A host tensor that reports itself as CPU memory to jax, even if it is page-locked.

    torch reports page-locked memory as kDLCUDAHost, which jax rejects (jax#22346) or, since
    jax#37896, imports as an array on the CUDA device, which device_put then does not move.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLDeviceType.kDLCPU, 0


def _array(jax: Any, tensor: torch.Tensor) -> Any:
    """The detached, contiguous tensor as a jax array; raises Unsupported if jax can't take it."""
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return jax.dlpack.from_dlpack(_HostTensor(plain) if plain.device.type == "cpu" else plain)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, BufferError) as error:
        kind = f"{tensor.layout} tensor of {tensor.dtype}".replace("torch.", "")
        raise Unsupported(
            f"placement=jax takes no {kind} ({first_line(error)}); placement=recursive moves any"
        ) from error


def _device(jax: Any, device: torch.device) -> Any:
    platform = PLATFORMS.get(device.type)
    if platform is None:
        raise Unsupported(f"placement=jax: jax has no device {device}")
    try:
        return jax.devices(platform)[device.index or 0]
    except (RuntimeError, IndexError) as error:
        install = "; pip install 'jax[cuda13]'" if platform == "cuda" else ""
        raise Unsupported(f"placement=jax: jax has no {device} here ({error}){install}") from error
