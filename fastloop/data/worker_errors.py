"""Explain the errors of DataLoader workers: name the failing sample, or the end of a worker."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from torch.utils.data import DataLoader, IterableDataset

from fastloop.core.exit_status import describe_exit
from fastloop.core.machine_counters import oom_kills
from fastloop.core.protocols import Samples
from fastloop.core.types import BadData, Unsupported
from fastloop.core.user_code import error_line, worker_error_line
from fastloop.processes.parent_death import tie_worker_to_parent
from fastloop.processes.resources import shm_total_bytes

EXIT_TIMEOUT_S = 5
"""Seconds that a worker gets to exit after the connection to it is lost."""
END_OF_WORKER = re.compile(r"DataLoader worker \(pid.*(exited unexpectedly|killed by signal)")
FULL_SHM = re.compile(r"(shared memory|shm|/torch_).*(No space left on device|Cannot allocate)")
"""torch's messages if /dev/shm has no room for a batch; a bus error is another sign of it."""


@contextmanager
def name_failing_sample(loader: object) -> Iterator[None]:
    """Raise errors of a DataLoader's workers as BadData that names the failing sample.

    If no sample fails when all are read again, the error is unchanged, and so is a BadData.
    Unsupported is raised as Unsupported again. MemoryError is raised if /dev/shm is full, or if the
    kernel has killed a worker for lack of memory. For another end of a worker, ChildProcessError is
    raised, with the worker's exit status if it is known.
    """
    # torch's message has no index. A wrapper around the dataset that recorded it would cost time
    # for every sample of every epoch; reading all samples again costs time only after an error.
    oom_kills_before = oom_kills()
    try:
        yield
    except Exception as error:
        if _is_end_of_worker(error, loader):
            raise _describe_end(_workers(error), oom_kills() > oom_kills_before) from error
        if isinstance(error, BadData) or not worker_error_line(error):
            raise
        if FULL_SHM.search(str(error)):
            raise MemoryError(describe_full_shm()) from error
        # Unsupported is a verdict on the job: the worker's traceback is left out.
        if isinstance(error, Unsupported):
            raise Unsupported(_message(error)) from error
        if not (message := _failing_sample(loader)):
            raise
        raise BadData(f"{message} (in a DataLoader worker)") from error


@dataclass(frozen=True)
class FailureLocator:
    """A dataset that returns None for each readable sample, and raises BadData with the index of
    any other."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> None:
        try:
            self.samples[index]
        except Exception as error:
            raise BadData(f"sample {index}: {error_line(error)}") from error


def _is_end_of_worker(error: Exception, loader: object) -> bool:
    """True if a worker has ended, by torch's message or by the loss of the connection to it."""
    if not getattr(loader, "num_workers", 0) or worker_error_line(error):
        return False
    return isinstance(error, ConnectionError | EOFError) or bool(END_OF_WORKER.search(str(error)))


def _workers(error: Exception) -> list[BaseProcess]:
    """The workers of the DataLoader's iterator that raised the error."""
    # Only a DataLoader with persistent workers refers to its iterator. The frames of the traceback
    # always do.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lists = [getattr(frame.f_locals.get("self"), "_workers", []) for frame in frames]
    return next((workers for workers in lists if workers), [])


def _describe_end(workers: list[BaseProcess], out_of_memory: bool) -> Exception:
    """A MemoryError for a lack of memory; otherwise an error with the exit status of one of the
    workers, if it is known."""
    # A worker's pipe closes before its exit status is known.
    wait([worker.sentinel for worker in workers], EXIT_TIMEOUT_S)
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    # Writing to a mapped file for which /dev/shm has no page raises SIGBUS.
    if -signal.SIGBUS in codes:
        return MemoryError(describe_full_shm())
    if out_of_memory and (not codes or -signal.SIGKILL in codes):
        return MemoryError("the kernel killed a DataLoader worker")
    if not codes:
        return ChildProcessError("a DataLoader worker ended before its batch")
    return ChildProcessError(
        f"a DataLoader worker ended before its batch, {describe_exit(codes[0])}"
    )


def describe_full_shm() -> str:
    """A line that says that /dev/shm has no room for a batch, with remedies."""
    # The whole size is shown, because the space that was in use is free again by now.
    total = shm_total_bytes()
    known = f" ({total >> 20} MiB in all)" if total else ""
    advice = "a larger one, fewer num_workers, or a smaller prefetch_factor or batch_size"
    return (
        f"/dev/shm{known} has no room for the batches that DataLoader workers hand over: {advice}"
    )


def _failing_sample(loader: object) -> str:
    """Index and error of the first sample that fails in a worker; empty if none fails, if the
    dataset is iterable, or if the loader is not a DataLoader."""
    # The samples are read in workers with the same settings, because a sample may fail only there,
    # for example by a file handle that does not survive a fork.
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
        return _message(error)
    return ""


def _message(error: Exception) -> str:
    """The first line of the message of an error in a worker, without the name of its class."""
    return (worker_error_line(error) or "").partition(": ")[2]
