"""A job in this process: its loader, the delivery of its batches, checks, and its setup."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastloop.core.benchmark import Session, Setup
from fastloop.core.parts import Part
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.traits import LoaderTraits, TransformTraits, traits_of
from fastloop.core.types import Epochs, Tree
from fastloop.data.cropped_dataset import CroppedDataset
from fastloop.data.random_samples import make_repeatable
from fastloop.data.same_crops import check_crops
from fastloop.data.same_data import check_data, check_placed
from fastloop.observe.event_log import EventLog
from fastloop.observe.job_probe import Probe
from fastloop.trial.device_delivery import full_delivery, loader_opener
from fastloop.trial.job import Job
from fastloop.trial.model_input import find_model_input
from fastloop.trial.page_cache import ReopenableLoader, open_reopenable
from fastloop.trial.unread_batches import UnreadBatches, may_be_unread
from fastloop.trial.window import Consumer, drain


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """A job in this process: its data, and this rank's device and plan."""

    job: Job
    prepared: PreparedData
    device: torch.device
    plan: Plan

    def open_loader(self) -> AbstractContextManager[ReopenableLoader]:
        """Open the job's loader, to be closed when the context ends."""
        return open_reopenable(loader_opener(self.job, self.prepared, self.plan, self.device))

    def with_probe(self, log: EventLog) -> JobContext:
        """A context with a loader that records its work, if it is built on torch's DataLoader."""
        fetch = Part.DECODE if self.job.loader.store is None else Part.READ
        return replace(self, plan=replace(self.plan, probe=Probe(log, fetch)))

    def loop_delivery(self) -> Consumer:
        """The part of `full_delivery` left to the loop: all of it, or none with device_prefetch."""
        if self.job.device_prefetch:
            return lambda batch: batch
        return full_delivery(self.job, self.prepared, self.device)

    def step_delivery(self) -> Consumer:
        """A function from a batch of the open loader to the step's input, which is transformed."""
        deliver = self.loop_delivery()
        transform = self.job.transform.transform_batch
        is_identity = traits_of(TransformTraits, self.job.transform).is_identity
        if is_identity or self.job.transform.where == "worker":
            return deliver
        return lambda batch: transform(deliver(batch))

    def check_epoch(
        self,
        epochs: Epochs,
        epoch: int,
        observe: Callable[[np.ndarray], object] | None = None,
    ) -> bool:
        """Raise Invalid if one epoch, as the step would receive it, is not the dataset's.

        Returns True if bytes of some batch may be unread in a file.

        observe: called with the (batch, 16) uint8 hashes of each batch.
        """
        # Random samples can't be compared: a second loader without the randomness is checked
        # instead of the timed one.
        if self.is_random:
            plain = self.without_randomness()
            with plain.open_loader() as loader:
                return plain.check_epoch(loader.epochs, epoch, observe)
        unread = UnreadBatches(epochs(epoch), self.device)
        deliver = check_placed(self.loop_delivery())
        batches = map(deliver, unread)
        if compares_crops(self.job):
            check_crops(self.prepared, self.plan, batches, epoch, observe)
        else:
            check_data(
                self.prepared,
                self.plan,
                batches,
                epoch,
                same_data=self.job.same_data,
                observe=observe,
            )
        return unread.found

    @property
    def is_random(self) -> bool:
        """True if epochs are compared by another loader than the one that is timed."""
        return self.plan.transform is not None or (self.prepared.random and self.job.same_data)

    def without_randomness(self) -> JobContext:
        """A context of the job without its transform; random samples that are compared are read
        with generators seeded by their index.

        Raises Unsupported for a store of random samples.
        """
        prepared = make_repeatable(self.prepared) if self.job.same_data else self.prepared
        return replace(self, plan=replace(self.plan, transform=None), prepared=prepared)

    def first_batch(self, epochs: Epochs) -> Tree:
        """A batch of the loader, as an example."""
        return next(iter(epochs(self.job.epochs)))

    def build_setup(self, batch: Tree, unread: bool = False) -> Setup:
        """Build the setup of the job's benchmarks for batches like this one of the loader.

        unread: True if other batches may be memory-mapped, with bytes that nobody has read yet.
        """
        delivered = self.step_delivery()(batch)
        sample, pair = find_model_input(self.job, self.prepared.num_classes, delivered)
        return Setup(
            model=self.job.model,
            sample=sample,
            num_classes=self.prepared.num_classes,
            learning_rate=self.job.learning_rate,
            seed=self.plan.seed,
            device=self.device,
            unread=unread or (self.device.type == "cpu" and may_be_unread(batch)),
            execution=self.job.execution,
            precision=self.job.precision,
            pair=pair,
        )

    def warm_up(self, session: Session, deliver: Consumer, epochs: Epochs) -> None:
        """Consume one epoch with a start of the session that is then discarded."""
        consume, _ = session.start(deliver)
        with self.join_uneven_ranks(session):
            drain(epochs, consume, self.job.epochs, self.device)

    def join_uneven_ranks(self, session: Session) -> AbstractContextManager[Any]:
        """A context in which a rank that runs out of batches still takes part in the gradient
        averaging of the others; does nothing if all ranks have equally many batches."""
        even = traits_of(LoaderTraits, self.job.loader).even_shares
        if session.ddp is None or (even and not self.prepared.broken):
            return nullcontext()
        # Ranks with equally many batches need no join, which adds a collective operation to each
        # step.
        return session.ddp.join()


def compares_crops(job: Job) -> bool:
    """True if samples are compared as crops, place by place, instead of by their bits."""
    follows_order = traits_of(LoaderTraits, job.loader).even_shares
    return isinstance(job.dataset, CroppedDataset) and job.same_data and follows_order
