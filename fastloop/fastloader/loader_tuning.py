"""Choose the number of threads that read a source, and how far the threads read ahead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.fastloader.bytes_ahead import AHEAD_BYTES
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.loader_settings import LoaderSettings

# experiments/fastloader has measurements behind these numbers.
GROUP_BYTES = 4 << 20
"""Approximate bytes of a group, the batches that are copied to a device together."""
UNTHREADED_BYTES = 1 << 19
"""Maximum bytes of an epoch of cheap samples that is made without threads. Making such an epoch
takes a tenth of a millisecond, as long as starting a thread and waiting for it."""
MAX_THREADS = 4
"""Maximum number of threads for samples that do not wait for a disk or a network. Four threads use
all of the memory's bandwidth."""
MAX_WAITING_THREADS = 16
"""Maximum number of threads for samples that wait for a disk or a network. A thread that waits
hardly needs a core."""


@dataclass(frozen=True)
class Workload:
    """The amount and the kind of an epoch's work, for which `choose_tuning` finds a tuning."""

    row_nbytes: int
    """Bytes of a sample; 0: unknown."""
    batch_size: int
    num_samples: int
    """Number of samples of the source. A rank or a sampler may deliver fewer in an epoch."""
    is_cheap: bool
    """True if rows are only copied or converted, so that a sample costs no more than a copy."""
    is_native: bool = False
    """True if the native core makes the rows, which stay on the CPU."""
    is_grouped: bool = False
    """True if several small batches are copied to a device at once."""


@dataclass(frozen=True)
class Tuning:
    """The number of threads that read a source, and the limits of their reading ahead.

    `tune` finds the tuning of a loader. The functions that it calls state the rules.
    """

    num_threads: int
    """Number of threads that read ahead of the loop; 0: the loop reads."""
    prefetch_factor: int
    """Number of groups of batches that each thread makes ahead of the loop. The native core limits
    bytes instead, unless the user gives this number, see native_stream.py."""
    group_rows: int = 1
    """Maximum number of rows in a group of several batches, which are copied to a device together.
    A larger batch is a group by itself."""
    is_adaptive: bool = False
    """True: the threads begin only if they save time, see LoopOrThreads."""
    waiting_threads: int = 0
    """Maximum number of threads for samples that wait for a disk or a network; 0: num_threads."""
    is_bounded: bool = False
    """True: AHEAD_BYTES limits the batches made ahead, see BytesAhead. False, or if several threads
    make each batch together: only num_threads and prefetch_factor limit their number."""
    num_cores: int = field(default_factory=usable_cores)
    """Number of cores that the threads and the loop's step share."""

    @property
    def most_threads(self) -> int:
        """Maximum number of threads in an epoch."""
        return max(self.num_threads, self.waiting_threads)


def tune(
    settings: LoaderSettings,
    source: BatchSource | IterableSource,
    target: torch.device | None,
    *,
    by_core: bool,
    by_processes: bool,
) -> Tuning:
    """The tuning of a loader of this source; numbers that the settings give are kept.

    target: the device of the batches; None: the CPU. by_core: the native core can make the rows.
    by_processes: processes read the source. Raises ValueError for several threads of an iterable.
    """
    if isinstance(source, IterableSource):
        return _tune_iterable(settings, source)
    is_plain = target is None and not settings.pins
    asked_for = _threads_asked_for(settings, is_plain=is_plain, by_processes=by_processes)
    tuning = (
        _tune_rows(settings, source, asked_for, target, by_core=by_core)
        if isinstance(source, ColumnSource)
        else _tune_dataset(settings, source, asked_for, is_plain=is_plain)
    )
    # A prefetch_factor that is chosen here fits the sizes that are known now. If batches turn out
    # larger, AHEAD_BYTES limits them. A prefetch_factor that the user gives has no such limit.
    return replace(tuning, is_bounded=settings.prefetch_factor is None)


def _threads_asked_for(
    settings: LoaderSettings, *, is_plain: bool, by_processes: bool
) -> int | None:
    """The number of threads that follows from the settings; None: it is to be chosen.

    is_plain: batches are delivered as they are collated, in memory of the CPU that is not pinned.
    """
    if settings.num_threads is not None:
        return settings.num_threads
    if by_processes:
        # Processes make the batches. A thread is needed only to transform them, or to bring them to
        # pinned memory or a device.
        return 0 if settings.transform is None and is_plain else 1
    return settings.num_workers


def _tune_rows(
    settings: LoaderSettings,
    source: ColumnSource,
    num_threads: int | None,
    target: torch.device | None,
    *,
    by_core: bool,
) -> Tuning:
    """The tuning for columns.

    num_threads: None: the number is chosen here. target, by_core: as in `tune`.
    """
    is_cheap = not source.is_slow and settings.transform is None
    workload = Workload(
        row_nbytes=source.row_nbytes,
        batch_size=settings.batch_size or 1,
        num_samples=len(source),
        is_cheap=is_cheap,
        is_native=is_cheap and by_core and target is None,
        is_grouped=is_cheap and target is not None,
    )
    return choose_tuning(workload, num_threads, settings.prefetch_factor)


def _tune_dataset(
    settings: LoaderSettings, source: DatasetSource, num_threads: int | None, *, is_plain: bool
) -> Tuning:
    """The tuning for a Dataset; a sample is assumed to cost more than a copy.

    num_threads: None: the number is chosen here. is_plain: as in `_threads_asked_for`.
    """
    # Threads read a Dataset only while they save time, see LoopOrThreads. But a thread that copies
    # batches to a device is always useful.
    is_adaptive = num_threads is None and is_plain
    # Several threads would have to take turns at the Dataset, or get copies of it. Only the user
    # can ask for that.
    if num_threads is None and not source.is_thread_safe:
        num_threads = 1
    workload = Workload(
        row_nbytes=0, batch_size=settings.batch_size or 1, num_samples=len(source), is_cheap=False
    )
    tuning = choose_tuning(workload, num_threads, settings.prefetch_factor)
    # If samples wait, for example for a disk, more threads than cores save time.
    waiting_threads = MAX_WAITING_THREADS if is_adaptive and source.is_thread_safe else 0
    return replace(tuning, is_adaptive=is_adaptive, waiting_threads=waiting_threads)


def _tune_iterable(settings: LoaderSettings, source: IterableSource) -> Tuning:
    """The tuning for an iterable, which at most one thread reads; raises ValueError for more."""
    num_threads = settings.num_threads
    if num_threads is not None and num_threads > 1:
        allowed = f"0 or 1; num_workers={num_threads} reads it by processes, each its share"
        raise ValueError(
            f"num_threads={num_threads} with an IterableDataset: allowed are {allowed}"
        )
    if num_threads is None:
        # If processes read the iterable, a thread waits for their batches. Otherwise the loop reads
        # the iterable: some iterables continue after an epoch that was left early, and samples that
        # a thread had read ahead would be lost.
        num_threads = 1 if source.workers else 0
    ahead = settings.prefetch_factor
    return Tuning(num_threads, ahead or 2, is_bounded=ahead is None)


def slow_down(tuning: Tuning, lead: int, *, by_processes: bool) -> Tuning:
    """The tuning for a sampler that is read no further ahead than DataLoader would read it.

    lead: number of batches by which DataLoader's sampler is ahead of the loop. by_processes: True:
    processes make batches ahead of the loop, so no thread is needed.
    """
    most = 0 if by_processes else max(0, lead - 1)
    num_threads = min(tuning.num_threads, most)
    ahead = most // max(1, num_threads) or 1
    return replace(tuning, num_threads=num_threads, prefetch_factor=ahead, waiting_threads=0)


def choose_tuning(
    workload: Workload, num_threads: int | None = None, prefetch_factor: int | None = None
) -> Tuning:
    """The tuning of a workload.

    num_threads, prefetch_factor: numbers that the user has given; None: a number is chosen here.
    """
    group_rows = GROUP_BYTES // max(1, workload.row_nbytes) if workload.is_grouped else 1
    nbytes = max(1, workload.row_nbytes) * max(workload.batch_size, group_rows)
    if num_threads is None:
        num_threads = _choose_threads(workload, nbytes)
    if prefetch_factor is None:
        # Each thread makes two groups ahead, or one if two for each would exceed the limit.
        prefetch_factor = 1 if 2 * num_threads * nbytes > AHEAD_BYTES else 2
    return Tuning(num_threads, prefetch_factor, max(1, group_rows))


def _choose_threads(workload: Workload, nbytes: int) -> int:
    """The number of threads for a workload: the number of usable cores, within limits.

    nbytes: bytes of a batch, or of the batches that are copied to a device together.
    """
    is_cheap = workload.is_cheap
    # Without the native core, the loop copies rows itself.
    if is_cheap and not workload.is_native and not workload.is_grouped:
        return 0
    # A small epoch would be over as soon as its threads have started.
    if is_cheap and workload.row_nbytes * workload.num_samples <= UNTHREADED_BYTES:
        return 0
    num_cores = usable_cores()
    if is_cheap:
        # One core is left to the loop. In the native core, the loop makes batches, too, if none is
        # ready.
        num_cores -= 1
    # One batch of each thread has to fit into AHEAD_BYTES. The native core limits the bytes of all
    # threads together, so any number of its threads fits.
    num_fitting = MAX_THREADS if workload.is_native else AHEAD_BYTES // nbytes
    return max(1, min(MAX_THREADS, num_cores, num_fitting))
