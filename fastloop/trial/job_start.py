"""Start a job in a fresh process: check that it can run, set torch's threads, and make its plan.

Every process that measures a job calls `start_job`, be it for a trial, a shadow or a pass.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

import torch

from fastloop.core.machine import describe_machine
from fastloop.core.order_parts import OrderPrefix, rank_plan, without_prefix
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import LengthAwareOrder
from fastloop.core.types import BadData
from fastloop.data.reference import sample_lengths
from fastloop.processes.rank_group import in_group, local_world_size, rank, world_size
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.rate_on_cores import cores_of_rank
from fastloop.trial.support import check_support

TRIAL_SEED_STRIDE = 10_000
"""Distance between the seeds of two trials of a job."""


def start_job(job: Job, prepared: PreparedData, number: int) -> JobContext:
    """Check that trial `number` can run here, set torch's threads, and make this rank's plan.

    Raises Unsupported if the job can't run here, and BadData if this node does not see the data.
    """
    device = check_support(job, world_size())
    # If there are more workers than cores, torch warns about that in every epoch, in the middle of
    # the progress line. A caveat below the table says so once.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    if world_size() > local_world_size():
        _check_files_exist(prepared)
    if threads := job.torch_threads or _rank_threads():
        torch.set_num_threads(threads)
    plan = with_sample_lengths(job.plan(job.seed + number * TRIAL_SEED_STRIDE), prepared)
    plan = rank_plan(plan, rank(), world_size())
    return JobContext(job=job, prepared=prepared, device=device, plan=plan)


def with_sample_lengths(plan: Plan, prepared: PreparedData) -> Plan:
    """The plan, with the sample lengths passed to an order that groups samples by length."""
    uncut = without_prefix(plan.order)
    if not isinstance(uncut, LengthAwareOrder):
        return plan
    order = uncut.with_lengths(sample_lengths(prepared))
    if isinstance(plan.order, OrderPrefix):
        order = replace(plan.order, order=order)
    return replace(plan, order=order)


def _check_files_exist(prepared: PreparedData) -> None:
    """Raise BadData, naming this node, if it does not see the data that the first node prepared."""
    for path in (prepared.reference, prepared.folder, *prepared.files):
        if not path.exists():
            hint = "every node reads the same folder by the same path, see FASTLOOP_OUTPUTS"
            raise BadData(f"{path}: not on node {describe_machine()['host']}; {hint}")


def _rank_threads() -> int | None:
    """A rank's share of the node's cores; None without torchrun: torch chooses its threads."""
    # torchrun sets OMP_NUM_THREADS=1 whatever the machine has, even for a single rank.
    if not in_group() and "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return cores_of_rank()
