"""`placement=jax`: seed 004's jax.device_put, handed over and back by DLPack."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from fastloop.optional import check_found, imported
from fastloop.trees import taken_apart
from fastloop.types import Tree, Unsupported, option

NEEDS = ("jax", "placement=jax", "pip install 'fastloop[jax]'")
PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}


@option
class Jax:
    """All tensors of a batch become jax arrays (by DLPack, without a copy), one device_put moves
    them, and the step gets torch tensors (by DLPack again).

    On CUDA each is cloned there: what torch frees, jax would use again at once, though torch's own
    stream may still be reading it. The clone waits for jax's copy, so that what waits for torch's
    stream (pinned_buffers) waits for both.

    jax runs threads, so that nothing may be forked after it: see job.py.
    """

    non_blocking: bool

    def check_installed(self) -> None:
        """Raise Unsupported where jax is absent."""
        check_found(*NEEDS)

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, and where jax has no such device or is absent."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the rest is torch's
        jax = imported(*NEEDS)
        target, wait = _device(jax, device), not self.non_blocking
        own = _own if device.type == "cpu" else _Cloned()

        def place(tree: Tree) -> Tree:
            tensors, put_together = taken_apart(tree, device)
            with jax.enable_x64(True):  # or int64 would become int32
                arrays = [_array(jax, tensor) for tensor in tensors]
                there = jax.device_put(arrays, target)
            if wait:
                jax.block_until_ready(there)
            return put_together(own(there))

        return place


def _own(arrays: list[Any]) -> list[torch.Tensor]:
    return [torch.from_dlpack(array) for array in arrays]


class _Cloned:
    """Copies of jax's arrays in torch's memory; the arrays are kept until they are copied."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Any, list[Any]]] = deque()

    def __call__(self, arrays: list[Any]) -> list[torch.Tensor]:
        while self._kept and self._kept[0][0].query():
            self._kept.popleft()
        clones = [torch.from_dlpack(array).clone() for array in arrays]
        if clones:
            stream = torch.cuda.current_stream(clones[0].device)
            self._kept.append((stream.record_event(), arrays))
        return clones


class _OnTheHost:
    """A host tensor for jax, wherever in the host's memory it lies.

    torch tells page-locked memory as CUDA's (kDLCUDAHost), which jax does not take (jax#22346) or,
    since jax#37896, makes an array on the CUDA device of that device_put leaves where it is.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **asked: Any) -> Any:
        return self._tensor.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLDeviceType.kDLCPU, 0


def _array(jax: Any, tensor: torch.Tensor) -> Any:
    """jax's array of what is contiguous and has no gradient; Unsupported where it has none such."""
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return jax.dlpack.from_dlpack(_OnTheHost(plain) if plain.device.type == "cpu" else plain)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, BufferError) as error:
        kind = f"{tensor.layout} tensor of {tensor.dtype}".replace("torch.", "")
        raise Unsupported(
            f"placement=jax takes no {kind} ({_first_line(error)}); placement=recursive moves any"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _device(jax: Any, device: torch.device) -> Any:
    platform = PLATFORMS.get(device.type)
    if platform is None:
        raise Unsupported(f"placement=jax: jax has no device {device}")
    try:
        return jax.devices(platform)[device.index or 0]
    except (RuntimeError, IndexError) as error:
        install = "; pip install 'jax[cuda13]'" if platform == "cuda" else ""
        raise Unsupported(f"placement=jax: jax has no {device} here ({error}){install}") from error
