"""The Protocols of the options that consume the batches of a job: benchmarks, models and
executions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch.nn.parallel import DistributedDataParallel

from fastloop.core.types import ExtractPair, Leaves, Step, Tree


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
        """Raise Unsupported for benchmarks or settings that can't be run on this machine."""
        ...

    def forward(self, module: torch.nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:
        """The function to call in place of the module; its first call is part of the warm-up."""
        ...

    def step(self, step: Step, module: torch.nn.Module) -> Step:
        """The function to call in place of a whole step; its first call is part of the warm-up."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The inputs of a benchmark's session."""

    model: Model
    sample: Leaves
    """dtype and shape of each leaf of a sample; if a model runs, of its input and its target."""
    num_classes: int | None
    learning_rate: float
    seed: int
    device: torch.device
    unread: bool
    """True if a batch may be memory-mapped, with bytes not yet read from the file."""
    execution: Execution
    precision: str
    pair: ExtractPair = tuple
    """Extracts (inputs, targets) from a batch that is not a pair itself, see
    trial/model_input.py."""


@runtime_checkable
class Benchmark(Protocol):
    """Consumes the batches of an epoch."""

    limit: Literal["gather", "replay"]
    """The machine limit to compare with. gather: the fastest way to do the loader's kind of work,
    such as gathering rows in memory or decoding files; replay: the same steps on batches that are
    on the device already."""

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported for samples that the benchmark or the model can't use.

        num_classes, sample: None: not known yet, as before the data is prepared.
        """
        ...

    def session(self, setup: Setup) -> Session:
        """A session with the state that all of its starts share. Raises Unsupported as `check`
        does."""
        ...


def runs_model(benchmark: Benchmark) -> bool:
    """True if the benchmark runs a model on the batches.

    Its limit says so: only the steps of a model are replayed.
    """
    return benchmark.limit == "replay"


@runtime_checkable
class Session(Protocol):
    """A benchmark that can be started several times: for warm-up, timing and replay."""

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The wrapper that averages gradients over ranks; None: gradients are not averaged."""
        ...

    def start(self, place: Callable[[Tree], Tree]) -> tuple[Callable[[Tree], Any], list]:
        """A function to call with each host batch, and the list to which it appends the losses.

        Each start resets the model to its state at the seed. place: brings a host batch to the
        device.
        """
        ...
