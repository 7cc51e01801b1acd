"""The class `JobContext`: a job in the process that measures it.

It opens the job's loader, delivers batches to the device, and sets the benchmarks up.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastloop.core.benchmark import Session, Setup
from fastloop.core.parts import Part
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.traits import LoaderTraits, TransformTraits, traits_of
from fastloop.core.types import Epochs, Tree
from fastloop.observe.event_log import EventLog
from fastloop.observe.job_probe import Probe
from fastloop.trial.device_delivery import full_delivery, loader_opener
from fastloop.trial.job import Job
from fastloop.trial.model_input import find_model_input
from fastloop.trial.reopenable_loader import ReopenableLoader, open_reopenable
from fastloop.trial.unread_batches import may_be_unread
from fastloop.trial.window import Consumer, drain


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """A job in this process: its data, and this rank's device and plan."""

    job: Job
    prepared: PreparedData
    device: torch.device
    plan: Plan

    def open_loader(self) -> AbstractContextManager[ReopenableLoader]:
        """A context in which the job's loader is open."""
        return open_reopenable(loader_opener(self.job, self.prepared, self.plan, self.device))

    def with_probe(self, log: EventLog) -> JobContext:
        """A copy of this context with a probe that records the loader's work to the log.

        Only a loader that is built on torch's DataLoader or on FastLoader is recorded.
        """
        fetch = Part.DECODE if self.job.loader.store is None else Part.READ
        return replace(self, plan=replace(self.plan, probe=Probe(log, fetch)))

    def loop_delivery(self) -> Consumer:
        """The function by which the loop brings a batch of the open loader to the device.

        With device_prefetch the batch is on the device already, and the function returns it as it
        is.
        """
        if self.job.device_prefetch:
            return lambda batch: batch
        return full_delivery(self.job, self.prepared, self.device)

    def step_delivery(self) -> Consumer:
        """The function that turns a batch of the open loader into the step's input.

        The function delivers the batch to the device and, unless a worker has transformed the
        samples already, transforms the batch.
        """
        deliver = self.loop_delivery()
        transform = self.job.transform.transform_batch
        is_identity = traits_of(TransformTraits, self.job.transform).is_identity
        if is_identity or self.job.transform.where == "worker":
            return deliver
        return lambda batch: transform(deliver(batch))

    def first_batch(self, epochs: Epochs) -> Tree:
        """The first batch of epoch `job.epochs`, as an example of the loader's batches.

        The epochs that the job asks for have lower numbers.
        """
        return next(iter(epochs(self.job.epochs)))

    def build_setup(self, batch: Tree, unread: bool = False) -> Setup:
        """Build the inputs of the sessions of the job's benchmarks.

        batch: an example of the loader's batches. unread: True if other batches may be
        memory-mapped, with bytes that nothing has read yet.
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
        """Start the session and consume one epoch, untimed; later starts reset the model."""
        consume, _ = session.start(deliver)
        with self.join_uneven_ranks(session):
            drain(epochs, consume, self.job.epochs, self.device)

    def join_uneven_ranks(self, session: Session) -> AbstractContextManager[Any]:
        """A context in which ranks with fewer batches still take part in averaging gradients.

        The context does nothing if all ranks have the same number of batches.
        """
        # A join adds a collective operation to each step, so ranks with the same number of batches
        # do without it.
        even = traits_of(LoaderTraits, self.job.loader).has_even_shares
        if session.ddp is None or (even and not self.prepared.broken):
            return nullcontext()
        return session.ddp.join()
