"""Plan: the order, settings and transforms by which a loader delivers a job's epochs.

The Protocols of the loaders that follow a plan are also here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import ValidationError

from fastloop.core.loading_settings import DATALOADER, DECLARED, LoadingSettings
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Collate, Order, Store, Transform
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Epochs, Tree, Unsupported, name_of

OWN_MODULES = "fastloop."
"""Start of the names of fastloop's own modules."""
CANONICAL_COLLATE, RAGGED_COLLATE = "canonical collate", "ragged collate"
"""Entries of a loader's `honours`, the names of the settings that the loader honours. With the
first entry the loader accepts a collate that takes samples as the dataset opens them; with the
second entry, one that takes samples of different lengths. The entry `collate` stands for every
collate."""


class LoaderProbe(Protocol):
    """Wraps the parts of a DataLoader, so that the times of their calls are recorded."""

    def watch_loaders(self) -> AbstractContextManager[None]:
        """A context in which DataLoaders number the batches that they make."""
        ...

    def wrap_dataset(self, dataset: Any) -> Any:
        """The dataset, wrapped so that its fetches are recorded."""
        ...

    def wrap_collate(self, collate_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """The function, wrapped so that its calls are recorded; None: torch's default_collate."""
        ...

    def wrap_read(self, read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
        """The function with which the dataset reads a file, wrapped to record its calls."""
        ...

    def wrap_transform(self, transform: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
        """The function that transforms a sample, wrapped to record its calls."""
        ...

    def add_pieces(self, pieces: np.ndarray) -> None:
        """Record pieces of work of threads that run no Python.

        pieces: int64 (pieces, 4). The columns are the thread (0: the loop's), the number of the
        batch, and the start and the stop of the piece in nanoseconds.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan by which a loader delivers epochs."""

    order: Order
    """The order of each epoch's samples; with several ranks, only this rank's share."""
    seed: int
    """The seed from which random orders are drawn."""
    loading: LoadingSettings = field(default_factory=LoadingSettings)
    """The settings that the job shares with torch's DataLoader."""
    collate: Collate | None = None
    """The collate that makes batches; None: torch's default_collate."""
    transform: Transform | None = None
    """Applied to each sample in the process that decodes it; None: no transform."""
    device: torch.device | None = None
    """Device of the step, for loaders that build batches on it; None: the CPU."""
    rank: int = 0
    """Number of this process, from 0, among the processes that load together."""
    world_size: int = 1
    """Number of processes that load together."""
    probe: LoaderProbe | None = None
    """Records the parts of each batch in a pass of `profile=true` or explain; None in every timed
    trial."""


@runtime_checkable
class Loader(Protocol):
    """Turns one storage format into batches."""

    store: Store | None
    """The store to read; None: the dataset itself."""

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """A context with the epochs.

        No thread, process or open file remains if the context is left before an epoch has ended.
        """
        ...


@runtime_checkable
class DeclaresSettings(Protocol):
    """A loader that declares the settings that it honours."""

    honours: tuple[str, ...]
    """Names of the settings that the loader honours in addition to those that every loader honours;
    `check_honoured` refuses a job that changes any other setting, before its data is prepared."""


@runtime_checkable
class PlanChecker(Protocol):
    """A loader that checks further conditions of a plan."""

    def check(self, plan: Plan) -> None:
        """Raise Unsupported, before data is prepared, for a plan that the loader can't follow."""
        ...


@runtime_checkable
class HasRowsCaveat(Protocol):
    """A loader with measurements that need a caveat."""

    def rows_caveat(self, num_samples: int) -> str:
        """The caveat, in one line, for this many samples; empty if there is none."""
        ...


def without_store(loader: Loader) -> Loader | None:
    """The loader with a null store, which reads the dataset's samples.

    None if the loader has no store, needs one, or can't be made anew.
    """
    reads_samples = traits_of(LoaderTraits, loader).reads_samples
    # A user's own loader may be any class, which can't be made anew with another store.
    if loader.store is None or not reads_samples or not is_dataclass(loader):
        return None
    copied: Any = loader
    try:
        return replace(copied, store=None)
    # The type of its store does not allow null.
    except ValidationError:
        return None
    except Exception:
        # A loader of another package may refuse a null store with any error. In one of fastloop's
        # own loaders, such an error is a fault.
        if type(loader).__module__.startswith(OWN_MODULES):
            raise
        return None


def honours_collate(honours: tuple[str, ...], collate: Collate) -> bool:
    """True if a loader with these honoured settings calls the collate."""
    return "collate" in honours or f"{collate.takes} collate" in honours


def check_honoured(
    loader: str,
    plan: Plan,
    honours: tuple[str, ...],
    of_samples: tuple[str, ...] = (),
) -> None:
    """Raise Unsupported if the plan changes a setting that this loader would ignore.

    loader: name of the loader, for the message. honours: names of the settings that this loader
    honours in addition to those that every loader honours. They are fields of LoadingSettings,
    `collate`, CANONICAL_COLLATE, RAGGED_COLLATE and `transform`. of_samples: names of the settings
    that the loader would honour if its store were null.
    """
    ignored = {
        name: getattr(plan.loading, name)
        for name in DATALOADER
        if name not in honours and getattr(plan.loading, name) != DECLARED[name].default
    }
    # The default collate and transform are None in a plan, so that every loader honours them.
    if plan.collate is not None and not honours_collate(honours, plan.collate):
        ignored["collate"] = plan.collate
    if plan.transform is not None and "transform" not in honours:
        ignored["transform"] = plan.transform
    for name, value in ignored.items():
        text = getattr(value, "target", name_of(value)) if is_dataclass(value) else value
        text = str(text).lower() if isinstance(value, bool) else text
        hint = _describe_callers(name, plan, of_samples)
        raise Unsupported(f"{name}={text}: loader={loader} has no such setting{hint}")


def _describe_callers(name: str, plan: Plan, of_samples: tuple[str, ...]) -> str:
    """The end of the message about an ignored setting; empty if it is no collate or transform.

    The text names the setting with which this loader calls the collate or the transform, or
    another loader that calls it.
    """
    if name not in ("collate", "transform"):
        return ""
    collate = plan.collate if name == "collate" else None
    if name in of_samples or (collate and honours_collate(of_samples, collate)):
        return " while it reads a store; loader.store=null reads the samples themselves"
    return "; loader=raw, for example, has it"
