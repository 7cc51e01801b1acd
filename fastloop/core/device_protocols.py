"""Protocols of the options of a job that work on the device: placement, model, execution.

Options satisfy them structurally, as they do the Protocols in protocols.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

import torch

from fastloop.core.types import Leaves, Step, Tree


@runtime_checkable
class Placement(Protocol):
    """Moves a host batch to the device."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a batch to the same batch on the device; no output is reused.

        Return a plain function: it is called for every batch inside the timed window, and a partial
        with the device as keyword argument takes 0.26 us more per batch.
        """
        ...


@runtime_checkable
class Model(Protocol):
    """A network that fits the samples."""

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported for samples that don't fit the model.

        num_classes, sample: None: not known yet, as before the data is prepared.
        """
        ...

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> torch.nn.Module:
        """A new module from (batch, *input_shape) to the input of cross_entropy.

        The caller has called torch.manual_seed. num_classes None: the samples have no classes.
        """
        ...


@runtime_checkable
class Execution(Protocol):
    """Runs a model's steps: eagerly, compiled, or as a graph."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:
        """Raise Unsupported for benchmarks or settings that it can't run on this machine."""
        ...

    def forward(self, module: torch.nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:
        """The function to call in place of the module; its first call is part of the warm-up."""
        ...

    def step(self, step: Step, module: torch.nn.Module) -> Step:
        """The function to call in place of a whole step; its first call is part of the warm-up."""
        ...
