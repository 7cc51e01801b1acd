"""What ranks do in the tests. A module of its own, and small: each of them imports it anew."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import count

import torch

from fastloop import replays
from fastloop.cache_state import bring_to, opened
from fastloop.digest import sample_hashes
from fastloop.gate import check_data
from fastloop.lengths import told_lengths
from fastloop.plans import of_rank
from fastloop.ragged import unpadded
from fastloop.ranks import rank, together, world_size
from fastloop.result import Attribution, Trial
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_profiled, run_trial
from fastloop.types import Invalid

BATCH = 16
SEED = 7


def plan_of(job, prepared, ranks: int, number: int):
    return of_rank(told_lengths(job.plan(SEED), prepared), number, ranks)


def hashed(prepared, batch) -> list[bytes]:
    """Of each sample with its label, without padding."""
    leaves = unpadded(batch, prepared.sample)
    return [one.tobytes() for one in sample_hashes(leaves, prepared.dataset.uint8_scale)]


def delivered(jobs) -> dict[str, list[list[list[bytes]]]]:
    """By this rank: the samples of each batch of epochs 0, 1 and 0 again. The gate has passed."""
    found = {}
    for name, (job, prepared) in jobs.items():
        plan = plan_of(job, prepared, world_size(), rank())
        with job.loader.open(prepared, plan) as epochs:
            found[name] = [[hashed(prepared, one) for one in epochs(k)] for k in (0, 1, 0)]
            check_data(prepared, plan, epochs(3), epoch=3)
    return found


def everything(job, prepared):
    with job.loader.open(prepared, job.plan(SEED)) as epochs:
        yield from epochs(0)


def honest(job, prepared):
    with job.loader.open(prepared, plan_of(job, prepared, world_size(), rank())) as epochs:
        yield from epochs(0)


def on_rank_1(change):
    """The honest loader but for what `change` makes there of the list of batches."""

    def lie(job, prepared):
        batches = list(honest(job, prepared))
        return change(batches) if rank() == 1 else batches

    return lie


def without_a_sample(batches):
    return [tuple(leaf[1:] for leaf in batches[0]), *batches[1:]]


def relabelled(batches):
    source, targets = batches[0]
    return [(source, targets.roll(1)), *batches[1:]]


def filled_up_otherwise(batches):
    """The last sample of rank 1 fills it up; here one that is in no dataset."""
    source, targets = batches[-1]
    return [*batches[:-1], (torch.cat([source[:-1], source[-1:] + 1]), targets)]


def in_float64(batches):
    return [(source.double(), targets) for source, targets in batches]


LIES = {
    "everything to everybody": everything,
    "honest on rank 0 only": on_rank_1(lambda _: []),
    "a sample is missing": on_rank_1(without_a_sample),
    "a batch is missing": on_rank_1(lambda batches: batches[1:]),
    "a batch comes twice": on_rank_1(lambda batches: [*batches, batches[0]]),
    "another batch": on_rank_1(lambda batches: [batches[1], *batches[1:]]),
    "labels are swapped": on_rank_1(relabelled),
    "filled up with something unknown": on_rank_1(filled_up_otherwise),
    "another dtype": on_rank_1(in_float64),
    "no batches": on_rank_1(lambda _: [("a", "b")]),
    "without an end": on_rank_1(lambda batches: (batches[one % 3] for one in count())),
}


def verdicts(job, prepared) -> dict[str, str]:
    """What this rank is told of each lie, one after the other in one group."""
    plan, told = plan_of(job, prepared, world_size(), rank()), {}
    for name, lie in LIES.items():
        try:
            check_data(prepared, plan, lie(job, prepared), epoch=0)
        except Invalid as why:
            told[name] = str(why)
        check_data(prepared, plan, honest(job, prepared), epoch=0)
    return told


def every_pass(job, prepared, folder) -> tuple[Trial, Attribution]:
    """A rank's part of what a command does."""
    (trial,) = trials_of([job], prepared)
    run_profiled(job, prepared, "training", folder)
    return trial, run_instrumented(job, prepared, "training")


def trials_of(jobs, prepared) -> list[Trial]:
    """One trial of each job, by a rank; the yardstick would take seconds."""
    replays.REPLAYED_STEPS = 10
    assert os.environ["OMP_NUM_THREADS"] == "1"  # as torchrun sets it
    return [run_trial(job, prepared, 0, now_ns()) for job in jobs]


def made_cold(job, prepared) -> list[tuple[float | None, float | None]]:
    """Share of the file's pages in memory before and after, of a trial, and where the ranks come to
    it one after the other."""
    seen = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    plan = plan_of(job, prepared, world_size(), rank())
    with opened(partial(job.loader.open, prepared, plan)) as loading:
        for _ in loading.epochs(0):
            pass
        together()
        time.sleep(rank() / 2)  # the last one still maps what it has read
        late = bring_to("cold", prepared.files, loading)
    return [(seen.cached_before, seen.cached_fraction), late]
