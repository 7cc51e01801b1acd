"""The class `Job`: the options and settings of one measurement, as plain data."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

from fastloop.core.auto_trials import AUTO, most_trials
from fastloop.core.benchmark import Benchmark, Execution, Model
from fastloop.core.loading_settings import LoadingSettings
from fastloop.core.order_parts import OrderPrefix
from fastloop.core.plan import Loader, Plan
from fastloop.core.protocols import Collate, Dataset, Decoder, Order, Placement, Transform
from fastloop.core.traits import CollateTraits, traits_of
from fastloop.core.types import option
from fastloop.data.prepare_dataset import DataRequest
from fastloop.processes.rank_group import resolve_device
from fastloop.trial.job_settings import JobSettings


@option
class Job(JobSettings):
    """A resolved configuration: all options and settings of one measured run.

    Plain data that can be pickled for a fresh process, and hashed.
    """

    dataset: Dataset
    """The source of the samples."""
    loader: Loader
    """Makes batches of the dataset, or of a store that it was written to."""
    order: Order
    """The order of the samples in an epoch."""
    decoder: Decoder | None = None
    """Decodes the dataset's images; None: they are not encoded."""
    transform: Transform
    """Changes each sample, in the workers or in the loop."""
    collate: Collate
    """Makes a batch of samples."""
    placement: Placement
    """Copies a batch to the device."""
    benchmark: dict[str, Benchmark]
    """The benchmarks that each trial times, by name."""
    model: Model
    """The model of the benchmarks that run a model, such as training."""
    execution: Execution
    """The way in which the model is run, such as eager or compiled."""
    loading: LoadingSettings
    """The settings that a DataLoader has."""
    loader_requirements: tuple[str, ...] = ()
    """Arguments of pip for the libraries that the loader and its store import, see
    processes/environments.py."""
    placement_requirements: tuple[str, ...] = ()
    """Arguments of pip for the libraries that the placement imports."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """Arguments of pip for all libraries that the job needs besides fastloop's own."""
        # Each argument occurs once, in this order.
        return tuple(dict.fromkeys((*self.loader_requirements, *self.placement_requirements)))

    @property
    def is_auto(self) -> bool:
        """True if trials go on until the ranking is decided."""
        return self.trials == AUTO

    @property
    def most_trials(self) -> int:
        """The largest number of trials that the job may have."""
        return most_trials(self.trials)

    @property
    def shortest_window_s(self) -> float:
        """Minimum length of a window in seconds."""
        # With cache=cold, epochs are not repeated: the repeats would find the data in memory.
        return 0.0 if self.cache == "cold" else self.min_window_s

    @property
    def prefetches_by_process(self) -> bool:
        """True if a process of its own prefetches batches to the device."""
        return bool(self.device_prefetch) and self.device_prefetch_by == "process"

    def plan(self, seed: int) -> Plan:
        """The plan by which the loader delivers a trial's epochs."""
        context = self.start_method() if self.loading.num_workers else None
        order = self.order
        if self.batches:
            order = OrderPrefix(order=order, count=self.batches * self.loading.batch_size)
        return Plan(
            order=order,
            seed=seed,
            loading=replace(self.loading, multiprocessing_context=context),
            collate=None if traits_of(CollateTraits, self.collate).is_default else self.collate,
            transform=self.transform if self.transform.where == "worker" else None,
            device=resolve_device(self.device),
        )

    @property
    def data_request(self) -> DataRequest:
        """The request to prepare the data that the loader reads."""
        defines_samples = traits_of(CollateTraits, self.collate).defines_samples
        return DataRequest(
            dataset=self.dataset,
            store=self.loader.store,
            tolerant=self.collate.tolerant,
            collate=self.collate if defines_samples else None,
        )

    def start_method(self) -> str:
        """Start method of workers and of a prefetching process: fork, forkserver or spawn."""
        # The first method is the default of a plain script. multiprocessing.get_start_method()
        # returns "forkserver" in a trial's process, as it was started by a forkserver: the first
        # batch would come after 1.35 s instead of 0.005 s.
        return self.loading.multiprocessing_context or multiprocessing.get_all_start_methods()[0]
