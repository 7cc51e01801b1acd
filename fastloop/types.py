"""What flows through fastloop. No behaviour; what options look like is in protocols.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import pydantic.dataclasses
import torch

if TYPE_CHECKING:
    from fastloop.protocols import Collate, Dataset, Execution, Model, Order, Transform

Tree = Any
"""A sample or a batch: any nesting of tuples, lists and dicts of tensors. A batch has the batch
dimension first."""

Leaves = tuple[tuple[str, tuple[int, ...]], ...]
"""dtype and shape of each leaf of a sample."""

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What is done with (inputs, targets) on the device: their loss, or something of the answers."""

Pair = Callable[[Tree], Any]
"""From a batch on the device to its (inputs, targets), the tensors that a model is given."""

Epochs = Callable[[int], Iterable[Tree]]
"""Number of an epoch -> its batches. Nothing for epoch k starts before the call."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option(cls: type[T]) -> type[T]:
    """A frozen, keyword-only pydantic dataclass: strict types, ranges, no unknown field."""
    config = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    made: Any = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=config)
    return made


class Unsupported(Exception):  # noqa: N818 - it is a verdict on a job, shown as a row
    """This job can't be run here; the message says why and what would make it run."""


class Invalid(Exception):  # noqa: N818 - a verdict too
    """The loader does not deliver the dataset; the message says what differs."""


class BadData(Exception):  # noqa: N818 - reads as what it is
    """The data at hand can't be used; the message names the file and what is wrong with it."""


class SamplesDiffer(BadData):
    """Samples that are no batch: their trees, dtypes or shapes are not the same."""


class JobFailed(Exception):  # noqa: N818 - an ending, raised in the process that asked for the work
    """Work in another process ended without a result."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A dataset that is ready to be read, by itself or as a store."""

    dataset: Dataset
    label: str
    fingerprint: str
    content: str
    """Equal where the samples are, in whatever order and wherever they come from."""
    reference: Path
    """Folder of the same-data reference, see digest.py."""
    folder: Path
    """Where the store is; where the loader reads the dataset itself, the same as `reference`."""
    files: tuple[Path, ...] = ()
    """What the loader reads: the store's folder, or the dataset's own files as far as it tells."""
    num_samples: int
    sample: Leaves
    """dtype and shape of each leaf of a collated sample, the batch dimension left out."""
    sample_nbytes: int
    """Bytes of a sample; the mean where they differ in length, padding left out."""
    num_classes: int | None = None
    """Of the labels; None where there are none."""
    seconds: float = 0.0
    """Seconds that writing the store took, also when it is reused; 0 without a store."""
    disk_mib: float = 0.0
    broken: tuple[tuple[int, str], ...] = ()
    """Index and reason of each sample that can't be decoded, where they may be skipped."""
    alike: str = ""
    """The same for encoded images whose decoders agree within a tolerance, see alike.py."""
    pixels_off: int = 0
    """By how much of 255 the samples looked at differ from Pillow's at most."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an epoch is to be delivered: torch's own settings, and the order."""

    order: Order
    seed: int
    batch_size: int
    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    multiprocessing_context: str | None = None
    drop_last: bool = False
    collate: Collate | None = None
    """None: torch's default_collate."""
    transform: Transform | None = None
    """What is done with each sample where it is decoded; None: nothing."""
    device: torch.device | None = None
    """Where the step runs, for a loader that makes its batches there; None: the CPU."""
    rank: int = 0
    """Among several processes that load together; `order` is this one's share."""
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a benchmark needs to know to start."""

    model: Model
    sample: Leaves
    """dtype and shape of each leaf; of the input and the target where a model runs."""
    num_classes: int | None
    learning_rate: float
    seed: int
    device: torch.device
    unread: bool
    """True where a batch's bytes may still lie unread in a file behind a memory map."""
    execution: Execution
    precision: str
    pair: Pair = tuple
    """Where batches are no pairs themselves, see pairs.py."""
    kept: dict[str, Any] = field(default_factory=dict)
    """By benchmark, what is built once for all its starts, see network.py."""
