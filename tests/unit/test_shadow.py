"""Dishonest loaders are invalid: what a window delivers is counted, and compared in its shadow."""

from __future__ import annotations

import mmap
import subprocess
import tempfile

import dishonest_loaders
import numpy as np
import pytest
import torch
from options import MYDATASET, compose_job, options, skip_without_library

from fastloop.core.index_batches import epoch_indices
from fastloop.core.result import Calls
from fastloop.core.spans import now_ns
from fastloop.core.types import Invalid, Unsupported
from fastloop.data.sample_order import places_in_store
from fastloop.data.shuffling import shuffling_of
from fastloop.data.window_counts import check_counts
from fastloop.processes.child_process import Call, start_child
from fastloop.trial import unread_batches
from fastloop.trial.outside_work import check_idle
from fastloop.trial.shadow import run_shadow
from fastloop.trial.timed_trial import run_trial

TRAVERSAL = ("benchmark=traversal", f"epochs={dishonest_loaders.EPOCHS}", "batch_size=16")
COUNTED = {
    "half_in_the_window": "101 samples in epoch 0 of its window, not 203",
    "exhausted": "0 samples in epoch 0 of its window, not 203",
    "one_batch": "batch_size=16: a batch of 203 samples in epoch 0",
    "small_batches": "batch_size=16: 26 batches of 203 samples in epoch 0",
}
COMPARED = {
    "cached_in_the_window": "the samples or their labels are not the dataset's",
    "alternating_labels": "the samples or their labels are not the dataset's",
    "stored_order": "order=random: epoch 3 is in the order of the store",
    "same_order": "order=random: epochs 3 and 0 are in the same order",
    "filled_late": "a batch changes after it was delivered: it is filled late",
    "made_when_opened": "works outside the window: epoch 0 takes",
    "reads_between_windows": "bytes read in a pause of",
    "works_between_windows": "s of CPU time in a pause of",
}
"""Part of the reason by dishonest loader; those compared are honest where they are only counted."""


@pytest.fixture
def dishonest_job(prepared_job):
    def make(name: str, *overrides: str):
        return prepared_job(
            f"loader._target_=dishonest_loaders.{name}", *MYDATASET, *TRAVERSAL, *overrides
        )

    return make


@pytest.mark.parametrize(("name", "reason"), COUNTED.items())
def test_window_with_other_batches_than_asked_is_invalid(dishonest_job, name, reason):
    job, prepared = dishonest_job(name, "benchmark=all")  # which asks for each epoch twice
    with pytest.raises(Invalid, match=reason):
        run_trial(job, prepared, 0, now_ns())


def test_idle_processes_are_no_work_outside_of_the_window():
    """Counting the bytes that 100 processes have read reads 400 KB itself."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(100)]
    try:
        check_idle(batch_nbytes=1)
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize(("name", "reason"), COMPARED.items())
def test_shadow_of_a_dishonest_loader_is_invalid(dishonest_job, name, reason):
    # long enough that work outside the window is told from noise
    job, prepared = dishonest_job(name, "dataset.count=16000", "batch_size=64")
    call = Call(function=run_shadow, args=(job, prepared, 0, Calls()))
    outcome = run_in_process(call)
    assert outcome.failure is not None
    assert outcome.failure.kind == "invalid"
    assert reason in outcome.failure.message


def run_in_process(call: Call):
    """The outcome of a call in a process of its own, with no other threads than the loader's."""
    with start_child("forkserver", call) as child:
        child.receiver.poll(None)
        return child.receive_outcome()


def test_honest_loader_has_a_shadow(dishonest_job):
    job, prepared = dishonest_job("honest", "order=sequential")
    run_trial(job, prepared, 0, now_ns())
    shadow = run_in_process(Call(function=run_shadow, args=(job, prepared, 3, Calls()))).value
    assert (shadow.number, shadow.epochs) == (3, dishonest_loaders.EPOCHS)
    assert shadow.shuffling.each_sample_once
    assert shadow.shuffling.new_order_each_epoch is False
    assert shadow.shuffling.distance == pytest.approx(0)
    assert shadow.shuffling.neighbours_kept == pytest.approx(1)


def test_unread_batches_are_found_wherever_they_are():
    """The first batch lies in memory, another in a mapped file, or waits until it is used."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        mapped = torch.from_numpy(np.memmap(file.name, np.uint8, "c"))
        resident, cpu = torch.zeros(4), torch.device("cpu")
        for batches, found in (
            ([(resident,), (resident,)], False),
            ([(resident,), (mapped[:4],)], True),
            ([(resident,), (resident.as_subclass(LateTensor),)], True),
        ):
            epoch = unread_batches.UnreadBatches(batches, cpu)
            assert len(list(epoch)) == 2
            assert epoch.found is found


class LateTensor(torch.Tensor):
    """A tensor that could fetch its values when it is used."""


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_allow_an_incomplete_batch_of_each_worker(prepared_job, workers):
    job, prepared = prepared_job(*MYDATASET, *TRAVERSAL, f"num_workers={workers}")
    plan = job.plan(0)
    check_counts(prepared, plan, [[16] * 12 + [11]], own_batches=False)
    uneven = [[16] * 6 + [6, 16, 16, 16, 16, 16, 16, 5]]
    check_counts(prepared, plan, uneven, own_batches=True)
    if workers:
        check_counts(prepared, plan, uneven, own_batches=False)
    else:
        with pytest.raises(Invalid, match="14 batches of 203 samples in epoch 0"):
            check_counts(prepared, plan, uneven, own_batches=False)


def test_counts_of_every_epoch_are_checked(prepared_job):
    job, prepared = prepared_job(*MYDATASET, *TRAVERSAL)
    whole = [16] * 12 + [11]
    with pytest.raises(Invalid, match="192 samples in epoch 2 of its window, not 203"):
        check_counts(prepared, job.plan(0), [whole, whole, whole[:-1]], own_batches=False)


KNOWN = {
    "order=sequential": (0.0, 1.0),
    "order=random": (1.0, 0.0),
    "order=blocks order.block_size=10 order.groups_together=1": (1.0, 0.9),
    "order=blocks order.block_size=1000 order.groups_together=1": (1.0, 0.06),
}


@pytest.mark.parametrize(("order", "known"), KNOWN.items())
def test_shuffling_has_known_answers(order, known):
    """Distance and kept neighbours of 10,000 samples; blocks keep neighbours near each other."""
    plan = compose_job(*order.split()).plan(0)
    places = {epoch: epoch_indices(plan.order, 10_000, 0, epoch).numpy() for epoch in (0, 1)}
    shuffling = shuffling_of(places, 10_000, batch_size=32)
    assert shuffling.each_sample_once
    assert shuffling.new_order_each_epoch is (order != "order=sequential")
    assert (shuffling.distance, shuffling.neighbours_kept) == pytest.approx(known, abs=0.1)


@pytest.mark.parametrize(("buffer", "distance"), [(1, 0.0), (100, 0.022), (1000, 0.22)])
def test_shuffle_buffer_moves_samples_less_than_a_uniform_shuffle(buffer, distance):
    """A buffer as webdataset's and tf.data's; a sample moves by 2 / e of it on average."""
    rng = np.random.default_rng(0)
    held, places = list(range(buffer)), []
    for index in range(buffer, 10_000 + buffer):
        at = rng.integers(len(held))
        places.append(held[at])
        held[at] = held[-1] if index >= 10_000 else index
        if index >= 10_000:
            held.pop()
    shuffling = shuffling_of({0: np.array(places)}, 10_000, batch_size=32)
    assert shuffling.each_sample_once
    assert shuffling.new_order_each_epoch is None
    assert shuffling.distance == pytest.approx(distance, abs=0.02)


def test_places_in_store_of_equal_and_unknown_samples():
    reference = np.random.default_rng(0).integers(0, 256, (5, 16), np.uint8)
    reference[3] = reference[1]
    unknown = np.zeros((1, 16), np.uint8)
    delivered = np.concatenate([reference[[4, 3, 0]], unknown])
    assert places_in_store(delivered, reference).tolist() == [4, 1, 0, -1]


@pytest.mark.heavy
@pytest.mark.parametrize("loader", options("loader"))
def test_every_loader_has_a_shadow(prepared_job, loader):
    """With the plan's order exactly; in a process of its own, as in a sweep."""
    try:
        job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *TRAVERSAL)
    except Unsupported as error:
        skip_without_library(error)
        raise
    calls = Calls(windows={"traversal": [1, 3]})
    outcome = run_in_process(Call(function=run_shadow, args=(job, prepared, 0, calls)))
    assert outcome.failure is None
    assert outcome.value.epochs == 3 * dishonest_loaders.EPOCHS
    assert outcome.value.shuffling.each_sample_once
