"""The data of a job, the plan of its epochs, and the Protocols of the loaders and benchmarks that
use them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from fastloop.core.loading_settings import DATALOADER, DECLARED, LoadingSettings
from fastloop.core.protocols import (
    Collate,
    Dataset,
    Execution,
    Model,
    Order,
    Store,
    Transform,
)
from fastloop.core.types import Epochs, ExtractPair, Leaves, Tree, Unsupported, name_of

CANONICAL_COLLATE, RAGGED_COLLATE = "canonical collate", "ragged collate"
"""Entries of a loader's `honours`: it accepts a collate that takes samples as they are, or one that
takes samples of different lengths. The entry `collate` accepts any, also one of uint8 images."""


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A dataset that is ready to be read, either directly or from a store."""

    dataset: Dataset
    label: str
    fingerprint: str
    content: str
    """Fingerprint of the samples, independent of their order and source."""
    reference: Path
    """Folder of the same-data reference, see data/reference.py."""
    folder: Path
    """Folder of the store; equal to `reference` if the loader reads the dataset itself."""
    files: tuple[Path, ...] = ()
    """Files that the loader reads: the store's folder, or the files that the dataset lists."""
    num_samples: int
    sample: Leaves
    """dtype and shape of each leaf of a collated sample, without the batch dimension."""
    sample_nbytes: int
    """Bytes per sample; the mean, without padding, if samples differ in length."""
    num_classes: int | None = None
    """Number of classes; None: the samples have no class labels."""
    seconds: float = 0.0
    """Seconds that writing the store took, even if it is reused now; 0 without a store."""
    disk_mib: float = 0.0
    broken: tuple[tuple[int, str], ...] = ()
    """Index and reason of each sample that can't be decoded, if such samples may be skipped."""
    random: bool = False
    """True if samples are random; the reference then holds samples that data/random_samples.py has
    made repeatable."""
    returns_batches: bool = False
    """True if the dataset's own `__getitems__` returns a batch instead of a list of samples."""
    decoder_equivalence_id: str = ""
    """Equal for datasets with decoders that agree within 2/255, see data/decoder_agreement.py."""
    pixels_off: int = 0
    """Largest difference from Pillow's pixels, in 255ths, among the compared samples."""


class LoaderProbe(Protocol):
    """Wraps the parts of a DataLoader, which then record when they are used."""

    def watch_loaders(self) -> AbstractContextManager[None]:
        """A context in which DataLoaders number the batches that they make."""
        ...

    def wrap_dataset(self, dataset: Any) -> Any:
        """The dataset, recording its fetches."""
        ...

    def wrap_collate(self, collate_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """The function, recording its calls; None: torch's default_collate."""
        ...

    def wrap_read(self, read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
        """The function of the dataset that reads a file, recording its calls."""
        ...

    def wrap_transform(self, transform: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
        """The function of a sample, recording its calls."""
        ...

    def add_pieces(self, pieces: np.ndarray) -> None:
        """Record pieces of work of threads that run no Python.

        pieces: int64 (pieces, 4), each row the thread (0: the loop's), the number of the batch, and
        start and stop in nanoseconds.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan by which a loader delivers epochs."""

    order: Order
    seed: int
    loading: LoadingSettings = field(default_factory=LoadingSettings)
    collate: Collate | None = None
    """The collate that makes batches; None: torch's default_collate."""
    transform: Transform | None = None
    """Applied to each sample in the process that decodes it; None: no transform."""
    device: torch.device | None = None
    """Device of the step, for loaders that build batches on it; None: the CPU."""
    rank: int = 0
    """Number of this process, from 0, among the `world_size` processes that load together. `order`
    contains only the share of this rank."""
    world_size: int = 1
    probe: LoaderProbe | None = None
    """The probe of an instrumented pass, if DataLoader or FastLoader loads; None in every timed
    pass."""


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
    """Extracts (inputs, targets) from a batch that is no pair itself, see trial/job_start.py."""


@runtime_checkable
class Loader(Protocol):
    """Turns one storage format into batches."""

    store: Store | None
    """The store to read; None: the dataset itself."""

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """Epochs of batches. Leaving early leaves no thread, process or file behind."""
        ...


@runtime_checkable
class DeclaresSettings(Protocol):
    """A loader that declares which settings it honours, checked before data is prepared."""

    honours: tuple[str, ...]
    """Names of the settings that the loader honours, see `check_honoured`."""


@runtime_checkable
class PlanChecker(Protocol):
    """A loader that checks further conditions of a plan."""

    def check(self, plan: Plan) -> None:
        """Raise Unsupported, before data is prepared, for a plan that the loader can't follow."""
        ...


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


def check_honoured(loader: str, plan: Plan, honours: tuple[str, ...]) -> None:
    """Raise Unsupported if the plan changes a setting that this loader would ignore.

    honours: settings that the loader honours besides those that every loader does: fields of
    LoadingSettings, `collate`, CANONICAL_COLLATE or RAGGED_COLLATE, and `transform`.
    """
    takes_collate = "collate" in honours or (
        plan.collate is not None and f"{plan.collate.takes} collate" in honours
    )
    ignored = {
        name: getattr(plan.loading, name)
        for name in DATALOADER
        if name not in honours and getattr(plan.loading, name) != DECLARED[name].default
    }
    # The default collate and transform are None in a plan, so that every loader honours them.
    if plan.collate is not None and not takes_collate:
        ignored["collate"] = plan.collate
    if plan.transform is not None and "transform" not in honours:
        ignored["transform"] = plan.transform
    for name, value in ignored.items():
        text = getattr(value, "target", name_of(value)) if is_dataclass(value) else value
        text = str(text).lower() if isinstance(value, bool) else text
        raise Unsupported(f"{name}={text}: loader={loader} has no such setting")
