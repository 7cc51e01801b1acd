"""The shapes that options satisfy.

An option satisfies a Protocol by its shape: there is no base class and no registry.
Hydra's `_target_` is the registry, `conf/<group>/<option>.yaml` mirrors
`fastloop/<group>s/<option>.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch

from fastloop.types import Epochs, Leaves, Plan, Prepared, Setup, Step, Tree

if TYPE_CHECKING:
    import numpy as np


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
    """None: there are none; 0: as many as the labels name, the largest + 1."""
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
    """A dataset or an order that tells where it is read from; a dataset that does not can't be read
    cold."""

    def files(self) -> list[Path]:
        """The files and folders that it is read from, for a dataset after `fetch`."""
        ...


@runtime_checkable
class Ragged(Protocol):
    """A dataset whose samples may differ in the first dimension of their leaves."""

    ragged: bool
    """True where they do. A dataset that does not say it has samples of one shape."""


@runtime_checkable
class Streamed(Protocol):
    """A dataset that is known only by what its loader delivers."""

    same_data: bool
    """False where that is random."""

    def batches(self) -> AbstractContextManager[Iterable[Tree]]:
        """One epoch."""
        ...


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

    def library(self) -> str:
        """Who decodes, and which version; raises Unsupported where that is not installed."""
        ...

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB, whatever the file's own colours are; raises BadData.

        What other colours become is what Pillow's convert("RGB") makes of them.
        """
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
    """True where a sample that can't be decoded comes as None instead of ending the run, and a
    batch of which nothing is left goes as None."""

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

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported for samples that it can't be fed with; None: not known yet."""
        ...

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> torch.nn.Module:
        """A new module, for which torch.manual_seed is set: (batch, *input_shape) -> what
        cross_entropy takes with the targets; num_classes None: there are none."""
        ...


@runtime_checkable
class Execution(Protocol):
    """How a model's steps are run."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:
        """Raise Unsupported for what it can't run, or can't run here."""
        ...

    def forward(self, module: torch.nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:
        """What to call in the place of the module; a first call belongs to the warm-up."""
        ...

    def step(self, step: Step, module: torch.nn.Module) -> Step:
        """What to call in the place of a whole step; the same holds for it."""
        ...


@runtime_checkable
class Benchmark(Protocol):
    """What is done with each batch."""

    limit: Literal["gather", "replay"]
    """The yardstick: gathering the same rows in memory, or the same steps on resident batches."""

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported for samples that it or the model can't use; None: not known yet."""
        ...

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """What to call with each host batch, and the list that the losses of its steps go to; the
        model is as it is at the seed."""
        ...
