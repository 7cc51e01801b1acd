"""Errors of DataLoader workers that name the sample that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from fastloop.core.protocols import Samples
from fastloop.core.types import BadData, Unsupported
from fastloop.core.user_code import error_line
from fastloop.processes.lifecycle import tie_worker_to_parent

IN_A_WORKER = "in DataLoader worker process"
"""Part of torch's message for an exception raised in a worker."""


@contextmanager
def name_failing_sample(loader: Any) -> Iterator[None]:
    """Raise errors of a DataLoader's workers as BadData that names the failing sample.

    The sample is found by reading all samples again; where none fails then, the error is unchanged.
    Unsupported is raised again as such. torch's message has no index, and a wrapper around the
    dataset that recorded it would cost time for every sample of every epoch.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, BadData) or IN_A_WORKER not in str(error):
            raise
        if isinstance(error, Unsupported):  # a verdict on the job, from whichever process
            raise Unsupported(_last_line(error, "Unsupported: ")) from error
        if not (message := _failing_sample(loader)):
            raise
        raise BadData(f"{message} (in a DataLoader worker)") from error


@dataclass(frozen=True)
class FailureLocator:
    """Dataset of None for each readable sample; raises BadData with the index of any other."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> None:
        try:
            self.samples[index]
        except Exception as error:
            raise BadData(f"sample {index}: {error_line(error)}") from error


def _failing_sample(loader: Any) -> str:
    """Index and error of the first sample that fails in a worker; empty where none fails, or where
    the dataset is iterable."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return ""
    again = DataLoader(
        FailureLocator(loader.dataset),  # pyright: ignore[reportArgumentType]
        batch_size=64,
        collate_fn=len,
        num_workers=loader.num_workers,
        multiprocessing_context=loader.multiprocessing_context,
        worker_init_fn=tie_worker_to_parent,
    )
    try:
        for _ in again:
            pass
    except BadData as error:
        return _last_line(error, "BadData: ")
    return ""


def _last_line(error: Exception, after: str) -> str:
    """The message in the last line of a worker's traceback, after the name of its class."""
    return str(error).strip().splitlines()[-1].partition(after)[2]
