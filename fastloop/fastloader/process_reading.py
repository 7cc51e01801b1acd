"""ProcessReading, which starts, keeps and ends the processes that read a map-style Dataset.

Processes read a Dataset faster than threads if its code holds the interpreter's lock. An epoch
takes the processes that the last epoch has left, or starts new ones. A whole epoch leaves its
processes if they are to persist (`persistent_workers`). An epoch that the loop leaves early ends
them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fastloop.fastloader.batching import Groups
from fastloop.fastloader.dataset_source import DatasetSource
from fastloop.fastloader.loader_settings import LoaderSettings, WorkerProcesses
from fastloop.fastloader.process_batches import ProcessBatches
from fastloop.fastloader.reader_pool import ReaderPool, open_context, start_pool
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.torch_draws import TORCHS_PREFETCH_FACTOR


@dataclass
class ProcessReading:
    """The processes of a loader. Raises ValueError if this system can't start them."""

    settings: WorkerProcesses
    in_order: bool
    """True: batches are delivered in the order of the epoch; False: in the order in which
    batches get ready."""
    idle: ReaderPool | None = None
    """The processes that the last epoch has left for the next one; None: it has left none, or an
    epoch that runs has taken them."""

    def __post_init__(self) -> None:
        if os.name == "nt":
            number = self.settings.num_workers
            allowed = f"num_threads={number} reads it by threads"
            raise ValueError(f"num_workers={number} on Windows: {allowed}")
        # An unknown start method is an error now, and not in the first epoch.
        open_context(self.settings)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no processes: they belong to this process."""
        return self.__dict__ | {"idle": None}

    def start(self, source: DatasetSource, groups: Groups, draws: SampleDraws) -> ProcessBatches:
        """The batches of an epoch, which the idle processes make, or else new ones.

        groups: the indices of the batches, in groups. The iterator of the batches owns the
        processes until it hands them to `_keep`, or ends them.
        """
        pool = self.idle
        self.idle = None
        # Processes of the parent can't be used in its fork.
        if pool is None or pool.pid != os.getpid():
            pool = start_pool(self.settings, source, draws)
        ahead = self.settings.num_workers * (
            self.settings.prefetch_factor or TORCHS_PREFETCH_FACTOR
        )
        return ProcessBatches(
            pool, draws, groups, ahead, in_order=self.in_order, keep_pool=self._keep
        )

    def _keep(self, pool: ReaderPool) -> None:
        """Keep the processes of a whole epoch if they are to persist; end them otherwise.

        If another epoch has left processes already, those are kept, and these are ended.
        """
        if self.settings.persistent_workers and self.idle is None:
            self.idle = pool
        else:
            pool.close()


def choose_processes(settings: LoaderSettings, source: object) -> ProcessReading | None:
    """The processes that read a source, or None if threads or the loop read the source.

    Processes read only a Dataset that threads may not share, and only if the settings ask for
    processes.

    Raises ValueError if this system can't start the processes.
    """
    processes = settings.workers
    # Threads read the rows of columns without the interpreter's lock.
    if processes is None or not isinstance(source, DatasetSource) or source.is_thread_safe:
        return None
    return ProcessReading(processes, settings.is_in_order)
