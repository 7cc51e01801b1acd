"""What a loader of one's own brings, where the command names no dataset, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fastloop.catalogue import default_of
from fastloop.own_loader import OwnLoader
from fastloop.protocols import Samples
from fastloop.types import Plan, Tree, Unsupported

if TYPE_CHECKING:
    from fastloop.job import Job

OWN_DATA = "fastloop.own_data.OwnData"
"""In the place of a dataset's `_target_`."""


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """What a loader of one's own delivers in its first epoch, where no dataset is named."""

    loader: OwnLoader
    plan: Plan
    same_data: bool
    label: ClassVar[str] = "own data"
    num_classes: ClassVar[int] = 0
    uint8_scale: ClassVar[None] = None

    def fetch(self) -> str:
        """Nothing: it is known by what comes."""
        return ""

    def open(self) -> Samples:
        """Raises Unsupported: there are batches only."""
        raise Unsupported(f"{self.loader.target} brings its own data: name one with dataset=…")

    @contextmanager
    def batches(self) -> Iterator[Iterable[Tree]]:
        """The first epoch."""
        with self.loader.delivering(self.plan, None) as epochs:
            yield epochs(0)


def targets(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, str]:
    """By group, the `_target_` that the command line has put in the place of the option's own."""
    return {
        group: values[group]["_target_"]
        for group in ("dataset", "loader", "model")
        if any(one.lstrip("+").startswith(f"{group}._target_=") for one in overrides)
    }


def brings_its_data(job: Job, choices: Mapping[str, str], overrides: Sequence[str]) -> bool:
    """True for a loader of one's own that takes no dataset, where none is named either."""
    starts = ("dataset=", "dataset.", "dataset@")
    named = any(one.lstrip("+").startswith(starts) for one in overrides)
    named = named or choices["dataset"] != default_of("dataset")
    return not named and isinstance(job.loader, OwnLoader) and "dataset" not in job.loader.takes


def on_its_own_data(job: Job) -> Job:
    """The same job with what its loader delivers in the place of the dataset."""
    assert isinstance(job.loader, OwnLoader)
    data = OwnData(loader=job.loader, plan=job.plan(job.seed), same_data=job.same_data)
    return replace(job, dataset=data)
