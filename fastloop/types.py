"""What flows through fastloop, and the shapes that options satisfy. No behaviour.

An option satisfies a Protocol by its shape: there is no base class and no registry.
Hydra's `_target_` is the registry, `conf/<group>/<option>.yaml` mirrors
`fastloop/<group>s/<option>.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeVar,
    dataclass_transform,
    runtime_checkable,
)

import pydantic.dataclasses
import torch

if TYPE_CHECKING:
    import numpy as np

    from fastloop.resources import Resources
    from fastloop.result import Result

Tree = Any
"""A sample or a batch: any nesting of tuples, lists and dicts of tensors. A batch has the batch
dimension first."""

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
    reference: Path
    """Folder of the same-data reference, see digest.py."""
    folder: Path
    """Where the store is; where the loader reads the dataset itself, the same as `reference`."""
    files: tuple[Path, ...] = ()
    """What the loader reads: the store's folder, or the dataset's own files as far as it tells."""
    num_samples: int
    sample: tuple[tuple[str, tuple[int, ...]], ...]
    """dtype and shape of each leaf of a collated sample, the batch dimension left out."""
    sample_nbytes: int
    """Bytes of a sample; the mean where they differ in length, padding left out."""
    seconds: float = 0.0
    """Seconds that writing the store took, also when it is reused; 0 without a store."""
    disk_mib: float = 0.0
    broken: tuple[tuple[int, str], ...] = ()
    """Index and reason of each sample that can't be decoded, where they may be skipped."""


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


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a benchmark needs to know to start."""

    model: Model
    sample: tuple[tuple[str, tuple[int, ...]], ...]
    num_classes: int | None
    learning_rate: float
    seed: int
    device: torch.device
    unread: bool
    """True where a batch's bytes may still lie unread in a file behind a memory map."""


class Samples(Protocol):
    """A map-style dataset: one decoded sample an index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tree: ...


@runtime_checkable
class Dataset(Protocol):
    """Where samples come from."""

    label: str
    """Its name as the tables show it."""
    num_classes: int | None
    uint8_scale: float | None
    """Canonical form: floats are integers / this scale (255 after ToTensor). None: exact bits."""

    def fetch(self) -> str:
        """A fingerprint of the data, which is fetched or made where it is missing."""
        ...

    def open(self) -> Samples:
        """The samples, each decoded when it is asked for."""
        ...


@runtime_checkable
class OnDisk(Protocol):
    """A dataset that tells where it is read from; whoever does not can't be read cold."""

    def files(self) -> list[Path]:
        """The files and folders that its samples are read from, after `fetch`."""
        ...


@runtime_checkable
class Ragged(Protocol):
    """A dataset whose samples may differ in the first dimension of their leaves."""

    ragged: bool
    """True where they do. A dataset that does not say it has samples of one shape."""


@runtime_checkable
class Store(Protocol):
    """A dataset written once in a format that reads fast."""

    root: str

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write batches, in order, into an empty folder, in memory bounded by a chunk."""
        ...

    def open(self, folder: Path) -> Tree:
        """The rows, not yet read."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """How the bytes of an image file become pixels."""

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB, whatever the file's own colours are; raises BadData."""
        ...


@runtime_checkable
class Uint8Images(Protocol):
    """A dataset of images that can leave out the conversion to floats."""

    def open_uint8(self) -> Samples:
        """(uint8 (height, width, channels) array, label) samples; over uint8_scale and with the
        channels first they are those of `open`."""
        ...


@runtime_checkable
class Collate(Protocol):
    """How a list of samples becomes a batch."""

    takes: Literal["canonical", "uint8", "ragged"]
    """The samples of `Dataset.open`, those of `Uint8Images.open_uint8`, or those of a `Ragged`
    dataset: such a leaf becomes (padded, lengths)."""
    tolerant: bool
    """True where a sample that can't be decoded comes as None instead of ending the run."""

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch, in the process that has decoded the samples."""
        ...

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:
        """What is left to do with the batch once it is on the device."""
        ...


@runtime_checkable
class Transform(Protocol):
    """What is done with the samples before the step; the same-data gate compares before it."""

    where: Literal["worker", "device"]
    """A sample at a time where it is decoded, or a batch at a time on the device."""

    def of_a_sample(self, sample: Tree) -> Tree:
        """The sample, transformed."""
        ...

    def of_a_batch(self, batch: Tree) -> Tree:
        """The batch, transformed."""
        ...


@runtime_checkable
class Order(Protocol):
    """In which order the samples of an epoch come."""

    complete: bool
    """True where each of [0, num_samples) comes exactly once in an epoch."""

    def length(self, num_samples: int) -> int:
        """How many indices an epoch has."""
        ...

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """The int64 indices of an epoch, piece by piece; the same for the same arguments."""
        ...


@runtime_checkable
class ByLength(Protocol):
    """An order that depends on how long each sample is."""

    def with_lengths(self, lengths: np.ndarray) -> Order:
        """The order of samples whose longest leaves are that long: int64 (num_samples,)."""
        ...


@runtime_checkable
class Loader(Protocol):
    """How one format becomes batches."""

    store: Store | None
    """The store that it reads; None: the dataset itself."""

    def open(self, prepared: Prepared, plan: Plan) -> AbstractContextManager[Epochs]:
        """Epochs of batches. Leaving early leaves no thread, process or file behind."""
        ...


@runtime_checkable
class Placement(Protocol):
    """How a host batch gets on the device."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a batch to one with every tensor on the device; no output is reused.

        A plain function, because it is called for every batch inside the window: a partial with
        the device as keyword measured 0.26 us a batch more.
        """
        ...


@runtime_checkable
class Model(Protocol):
    """A network that fits the samples."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
        """A new module: (batch, *input_shape) -> (batch, num_classes)."""
        ...


@runtime_checkable
class Benchmark(Protocol):
    """What is done with each batch."""

    limit: Literal["gather", "replay"]
    """The yardstick: gathering the same rows in memory, or the same steps on resident batches."""

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """What to call with each host batch, and the list that the losses of its steps go to."""
        ...


@runtime_checkable
class Launcher(Protocol):
    """Who starts the processes that do the work."""

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """function(*args), done in a fresh process; raises JobFailed when that ends otherwise."""
        ...

    def call_observed(
        self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None
    ) -> tuple[Any, Resources | None]:
        """The same, and what that process and its children took; None where nobody looked."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Where results are kept for comparison."""

    def start(self, result: Result) -> str:
        """The id of a new run for a job that is about to be measured."""
        ...

    def finish(self, result: Result, folder: Path) -> None:
        """Log the figures and the folder's files, and end the run with the result's status."""
        ...

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Keep these files with the run, which may have ended."""
        ...

    def where(self, sweep: str) -> str:
        """How a person can compare the sweep's runs, in lines; empty without such a place."""
        ...
