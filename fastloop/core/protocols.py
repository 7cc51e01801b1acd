"""Protocols that a job's options satisfy: datasets, stores, decoders, collates, transforms, orders,
placements and trackers; and Protocols of abilities that only some of these options have.

An option satisfies a Protocol structurally: there is no base class and no registry. Hydra's
`_target_` is the registry; `conf/<group>/<option>.yaml` mirrors
`fastloop/options/<group>/<option>.py`. Optional attributes of options are in traits.py. Protocols
that need types of their own are in three other modules: loaders in plan.py; benchmarks, models and
executions in benchmark.py; launchers in launcher.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch

from fastloop.core.result import Result
from fastloop.core.types import Tree

if TYPE_CHECKING:
    import numpy as np


class Samples(Protocol):
    """A map-style dataset: one decoded sample per index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tree: ...


@runtime_checkable
class Dataset(Protocol):
    """A source of samples."""

    label: str
    """Name shown in tables."""
    num_classes: int | None
    """Number of classes. None: there are no classes; 0: the largest label + 1 is the number."""
    uint8_scale: float | None
    """Canonical form of floats: integers divided by this scale (255 after ToTensor). None: exact
    bits."""

    def fetch(self) -> str:
        """Download or generate the data if it is missing, and return its fingerprint."""
        ...

    def open(self) -> Samples:
        """The samples, each decoded on access."""
        ...


@runtime_checkable
class HasFiles(Protocol):
    """A dataset or an order that lists the files it reads. Without a store, only such a dataset can
    be read with a cold page cache."""

    def files(self) -> list[Path]:
        """The files and folders to read. A dataset's files exist once `fetch` has returned."""
        ...


@runtime_checkable
class RaggedDataset(Protocol):
    """A dataset of samples that may differ in the first dimension of their leaves."""

    ragged: bool | None
    """True if the lengths differ. All samples of a dataset without this attribute have one shape.
    None: not known until collate=pad is chosen, see config/store_choice.py."""


@runtime_checkable
class StreamingDataset(Protocol):
    """A dataset that can't be indexed: its samples are known only from the batches that its loader
    delivers."""

    same_data: bool
    """False if the samples are random."""

    def batches(self) -> AbstractContextManager[Iterable[Tree]]:
        """The batches of one epoch."""
        ...


@runtime_checkable
class OverlappingDataset(Protocol):
    """A dataset of overlapping samples: a store would hold the same data several times."""

    def reason_against_store(self) -> str:
        """The reason why a store would be too large, with the sizes; empty if it would not."""
        ...


@runtime_checkable
class Store(Protocol):
    """A format in which a dataset is written once, to be read fast.

    fastloop's own stores also have a `format_version: int`, which is increased whenever the written
    format changes. Written data then remains valid when only the code changes; without a
    `format_version` it is written again after every change of the source file.
    """

    root: str

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write batches, in order, into an empty folder; memory is bounded by one chunk."""
        ...

    def open(self, folder: Path) -> Any:
        """The rows, read lazily: a tree of arrays, or an object that the loaders of this format
        read."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """Decodes the bytes of an image file into pixels."""

    def library(self) -> str:
        """Name and version of the decoding library; raises Unsupported if it is missing."""
        ...

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8 RGB; other colour spaces as Pillow's convert("RGB") maps them.

        Raises BadData.
        """
        ...


@runtime_checkable
class Uint8Images(Protocol):
    """A dataset of images that can skip the conversion to floats."""

    def open_uint8(self) -> Samples:
        """Samples (uint8 (height, width, channels) array, label), which equal the samples of `open`
        once divided by uint8_scale and permuted to channels first."""
        ...


@runtime_checkable
class EncodedSamples(Protocol):
    """Samples that are each decoded from one image file. Decoding can be timed alone, in several
    threads.

    If the samples are a dataclass with a field `decoder`, other decoders are tried in its place.
    """

    def __len__(self) -> int: ...

    def read_file(self, index: int) -> bytes:
        """The file of that sample."""
        ...

    def decode_file(self, data: bytes) -> np.ndarray:
        """Pixels of a file, (height, width, 3) uint8, resized as in the samples; raises BadData."""
        ...


@runtime_checkable
class Collate(Protocol):
    """Turns a list of samples into a batch."""

    takes: Literal["canonical", "uint8", "ragged"]
    """canonical: samples of `Dataset.open`; uint8: samples of `Uint8Images.open_uint8`; ragged:
    samples of a `RaggedDataset`, each leaf of which becomes (padded, lengths)."""
    tolerant: bool
    """True if a sample that can't be decoded is passed to `collate` as None instead of ending the
    run. A batch without any other sample is None."""

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch; called in the process that decoded the samples."""
        ...

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:
        """Finish the batch on the device, for example by converting uint8 to floats."""
        ...


@runtime_checkable
class Transform(Protocol):
    """Transforms samples before the step; the same-data gate compares data before the transform.

    A transform that crops image files is a part of the dataset instead, see
    data/cropped_dataset.py.
    """

    where: Literal["worker", "device"]
    """worker: each sample in the process that decodes it; device: each batch on the device."""

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample, transformed."""
        ...

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch, transformed."""
        ...


@runtime_checkable
class Order(Protocol):
    """The order of an epoch's samples."""

    @property
    def complete(self) -> bool:
        """True if each index in [0, num_samples) occurs exactly once in an epoch."""
        ...

    def length(self, num_samples: int) -> int:
        """Number of indices in an epoch."""
        ...

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """The int64 indices of an epoch, piece by piece; deterministic in the arguments."""
        ...


@runtime_checkable
class LengthAwareOrder(Protocol):
    """An order that depends on the lengths of the samples."""

    def with_lengths(self, lengths: np.ndarray) -> Order:
        """The order for samples of these lengths.

        lengths: int64 (num_samples,), the length of each sample's longest leaf.
        """
        ...


@runtime_checkable
class WorldSizeAwareOrder(Protocol):
    """An order that depends on the number of ranks among which its indices are dealt out."""

    def for_world_size(self, world_size: int) -> Order:
        """The order for that number of ranks."""
        ...


@runtime_checkable
class RandpermOrder(Protocol):
    """An order equal to torch.randperm with a generator seeded by core/seeds.py's
    epoch_seed(seed, epoch). A loader that draws the same order itself needs no sampler."""

    is_randperm: ClassVar[Literal[True]]
    """Marks the class, because its methods do not differ from the methods of any Order."""


@runtime_checkable
class HasCaveat(Protocol):
    """A collate or a model with measurements that need a caveat."""

    def caveat(self, sample_nbytes: int) -> str:
        """The caveat, in one line, for samples of this many bytes; empty if there is none."""
        ...


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
class Tracker(Protocol):
    """Keeps results for comparison."""

    def start(self, result: Result) -> str:
        """Start a run for a job that is about to be measured, and return its id."""
        ...

    def finish(self, result: Result, folder: Path) -> None:
        """Log the metrics and the folder's files, and end the run with the result's status."""
        ...

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Add these files to the run, which may have ended already."""
        ...

    def where(self, sweep: str) -> str:
        """Lines that say where to compare the sweep's runs; empty without a tracker."""
        ...
