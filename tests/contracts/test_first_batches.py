"""Contract of `batches=`: the first batches of each epoch, by every loader and in every order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from options import MYDATASET, compose_job, options, skip_without_library

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import OrderPrefix, rank_plan
from fastloop.core.protocols import LengthAwareOrder
from fastloop.core.spans import now_ns
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Invalid, Unsupported
from fastloop.trial.shadow import run_shadow
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

FIRST = ("batches=3", "batch_size=16", "benchmark=traversal", "epochs=2")


@pytest.mark.parametrize("loader", sorted(set(options("loader")) - {"user"}))
def test_loader_delivers_the_first_batches_of_each_epoch(prepared_job, loader):
    try:
        job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *FIRST)
        trial = run_trial(job, prepared, 0, now_ns())
    except Unsupported as error:
        skip_without_library(error)
        is_stream = traits_of(LoaderTraits, compose_job(f"loader={loader}").loader).shuffles_itself
        if is_stream and str(error).startswith("batches: "):
            return
        raise
    assert trial.benchmarks["traversal"].samples == 2 * 3 * 16
    shadow = run_shadow(job, prepared, 0, replace(trial.calls, windows={}))
    assert shadow.shuffling is not None
    assert shadow.shuffling.each_sample_once


@pytest.mark.parametrize("name", options("order"))
def test_first_indices_are_those_of_the_order(name):
    order = compose_job(f"order={name}").order
    if isinstance(order, LengthAwareOrder):
        order = order.with_lengths(np.arange(3000) % 7)
    prefix = OrderPrefix(order=order, count=48)
    whole = epoch_indices(order, 3000, 3, 5)
    assert torch.equal(epoch_indices(prefix, 3000, 3, 5), whole[:48])
    assert len(epoch_indices(prefix, 20, 3, 5)) == min(48, order.length(20))


def test_ranks_divide_as_many_batches_each():
    plan = compose_job(*FIRST, "order=random").plan(0)
    ranks = [rank_plan(plan, rank, 2) for rank in range(2)]
    shares = [epoch_indices(plan.order, 203, 0, 1) for plan in ranks]
    assert [len(share) for share in shares] == [48, 48]
    assert len({*torch.cat(shares).tolist()}) == 96


def test_batches_that_an_epoch_does_not_have_leave_it_whole(prepared_job):
    job, prepared = prepared_job("loader=raw", *MYDATASET, *FIRST, "batches=1000")
    assert run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"].samples == 2 * 203


def test_loader_that_delivers_whole_epochs_instead_is_invalid(prepared_job):
    target = "loader._target_=dishonest_loaders.whole_epochs"
    job, prepared = prepared_job(target, *MYDATASET, *FIRST)
    with pytest.raises(Invalid, match="more than 48 samples"):
        run_trial(job, prepared, 0, now_ns())


def test_loader_of_its_own_order_is_unsupported():
    job = compose_job("loader._target_=dishonest_loaders.own_order", *MYDATASET, *FIRST)
    with pytest.raises(Unsupported, match=r"batches: .*fastloop\.bench takes batches="):
        check_support(job)
