"""Functions that ranks run in tests. A small module, because each rank imports it anew."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from functools import partial
from itertools import count

import psutil
import torch
from torch import distributed

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import rank_plan
from fastloop.core.result import Attribution, Trial
from fastloop.core.spans import now_ns
from fastloop.core.types import Invalid
from fastloop.data.digest import sample_hashes
from fastloop.data.ragged import remove_padding
from fastloop.data.same_crops import check_crops
from fastloop.data.same_data import check_data
from fastloop.processes.rank_group import (
    RankSpec,
    all_gather,
    barrier,
    join_group,
    rank,
    world_size,
)
from fastloop.processes.store_messages import LOOPBACK, host_store
from fastloop.trial import training_limit
from fastloop.trial.device_delivery import loader_opener
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.job_start import with_sample_lengths
from fastloop.trial.page_cache import set_cache_state
from fastloop.trial.profiling import run_profiling
from fastloop.trial.reopenable_loader import open_reopenable
from fastloop.trial.timed_trial import run_trial

BATCH = 16
SEED = 7
CLONE_NEWUTS = 0x04000000
"""Linux's flag of a host name of one's own, man 2 unshare."""


def plan_of(job, prepared, ranks: int, number: int):
    return rank_plan(with_sample_lengths(job.plan(SEED), prepared), number, ranks)


def hash_samples(prepared, batch) -> list[bytes]:
    """Hash of each sample with its label, without padding."""
    leaves = remove_padding(batch, prepared.sample)
    return [row.tobytes() for row in sample_hashes(leaves, prepared.dataset.uint8_scale)]


def deliver_epochs(jobs) -> dict[str, list[list[list[bytes]]]]:
    """Sample hashes per batch of this rank's epochs 0, 1 and 0 again, after a check by the gate."""
    delivered = {}
    for name, (job, prepared) in jobs.items():
        plan = plan_of(job, prepared, world_size(), rank())
        with job.loader.open(prepared, plan) as epochs:
            delivered[name] = [
                [hash_samples(prepared, batch) for batch in epochs(epoch)] for epoch in (0, 1, 0)
            ]
            check_data(prepared, plan, epochs(3), epoch=3)
    return delivered


def deliver_crops(jobs) -> dict[str, dict[tuple[int, int], bytes]]:
    """Pixels of this rank's crops by (epoch, index), in epochs that the gate has checked."""
    delivered = {}
    for name, (job, prepared) in jobs.items():
        plan, crops = plan_of(job, prepared, world_size(), rank()), {}
        with loader_opener(job, prepared, plan, torch.device("cpu"))() as epochs:
            for epoch in (0, 1):
                batches = [tuple(leaf.clone() for leaf in batch) for batch in epochs(epoch)]
                check_crops(prepared, plan, batches, epoch)
                indices = epoch_indices(plan.order, prepared.num_samples, plan.seed, epoch)
                images = [image.numpy().tobytes() for batch in batches for image in batch[0]]
                keys = [(epoch, index) for index in indices.tolist()]
                crops |= dict(zip(keys, images, strict=True))
        delivered[name] = crops
    return delivered


def listening_addresses() -> set[str]:
    """Addresses at which a rank and the store of its group listen on a host that has only one node,
    and whose name resolves to another address than the loopback's."""
    name_host_by_address()
    store = host_store()
    spec = RankSpec(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        host=LOOPBACK,
        port=store.port,
        prefix="test",
        backend="gloo",
        timeout_s=60,
    )
    with join_group(spec):
        connections = psutil.Process().net_connections("inet")
        return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def name_host_by_address() -> None:
    """Name the host, for this process only, by the address of a network interface, if possible."""
    groups = psutil.net_if_addrs().values()
    addresses = [each for group in groups for each in group if each.family == socket.AF_INET]
    others = [each.address for each in addresses if each.address != LOOPBACK]
    if others and ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0:  # needs root
        socket.sethostname(others[0])


def send_pickle(malicious: bytes) -> list[int] | str:
    """What the other rank gathers, or its error, when rank 1 sends these bytes as torch's
    all_gather_object would."""
    if rank() == 0:
        try:
            return all_gather(1, int)
        except ValueError as error:
            return str(error)
    content = torch.frombuffer(bytearray(malicious), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    distributed.all_gather(lengths, torch.tensor([len(content)]))
    longest = int(max(lengths))
    content = torch.nn.functional.pad(content, (0, longest - len(content)))
    distributed.all_gather([torch.empty_like(content) for _ in range(2)], content)
    return "sent"


def deliver_everything(job, prepared):
    with job.loader.open(prepared, job.plan(SEED)) as epochs:
        yield from epochs(0)


def deliver_share(job, prepared):
    with job.loader.open(prepared, plan_of(job, prepared, world_size(), rank())) as epochs:
        yield from epochs(0)


def on_rank_1(change):
    """A loader that applies `change` to the batches of rank 1."""

    def deliver_changed(job, prepared):
        batches = list(deliver_share(job, prepared))
        return change(batches) if rank() == 1 else batches

    return deliver_changed


def drop_sample(batches):
    return [tuple(leaf[1:] for leaf in batches[0]), *batches[1:]]


def swap_labels(batches):
    source, targets = batches[0]
    return [(source, targets.roll(1)), *batches[1:]]


def replace_last_sample(batches):
    """Replace the filler sample of rank 1 by one that is not in the dataset."""
    source, targets = batches[-1]
    return [*batches[:-1], (torch.cat([source[:-1], source[-1:] + 1]), targets)]


def to_float64(batches):
    return [(source.double(), targets) for source, targets in batches]


FAULTS = {
    "all ranks deliver everything": deliver_everything,
    "rank 1 delivers nothing": on_rank_1(lambda _: []),
    "missing sample": on_rank_1(drop_sample),
    "missing batch": on_rank_1(lambda batches: batches[1:]),
    "repeated batch": on_rank_1(lambda batches: [*batches, batches[0]]),
    "wrong batch": on_rank_1(lambda batches: [batches[1], *batches[1:]]),
    "swapped labels": on_rank_1(swap_labels),
    "unknown filler sample": on_rank_1(replace_last_sample),
    "different dtype": on_rank_1(to_float64),
    "no tensors": on_rank_1(lambda _: [("a", "b")]),
    "endless epoch": on_rank_1(lambda batches: (batches[number % 3] for number in count())),
}


def check_faults(job, prepared) -> dict[str, str]:
    """Message of the gate on this rank for each fault, one after the other in one group."""
    plan, messages = plan_of(job, prepared, world_size(), rank()), {}
    for name, deliver in FAULTS.items():
        try:
            check_data(prepared, plan, deliver(job, prepared), epoch=0)
        except Invalid as error:
            messages[name] = str(error)
        check_data(prepared, plan, deliver_share(job, prepared), epoch=0)
    return messages


def run_every_pass(job, prepared, folder) -> tuple[Trial, Attribution]:
    """Run one rank's part of a trial, the profiling and the instrumented pass."""
    (trial,) = run_trials([job], prepared)
    run_profiling(job, prepared, "training", folder)
    return trial, run_instrumentation(job, prepared, "training")


def run_trials(jobs, prepared) -> list[Trial]:
    """Run one trial of each job on this rank, with few replayed steps for the limit."""
    training_limit.MAX_REPLAY_STEPS = 10
    assert os.environ["OMP_NUM_THREADS"] == "1"  # as torchrun sets it
    return [run_trial(job, prepared, 0, now_ns()) for job in jobs]


def measure_cold_cache(job, prepared) -> list[tuple[float | None, float | None]]:
    """Cached fraction of the file before and after dropping its pages: in a trial, and when ranks
    drop them one after the other."""
    measurement = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    plan = plan_of(job, prepared, world_size(), rank())
    with open_reopenable(partial(job.loader.open, prepared, plan)) as loading:
        for _ in loading.epochs(0):
            pass
        barrier()
        time.sleep(rank() / 2)  # the last rank still maps the pages it has read
        delayed = set_cache_state("cold", prepared.files, loading)
    return [(measurement.cached_before, measurement.cached_fraction), delayed]
