"""The contract of every loader found in conf/loader."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading

import psutil
import pytest
from options import MYDATASET, compose_job, options
from torch.utils.data import default_collate

from fastloop.digest import leaves_of
from fastloop.plans import epoch_indices

BATCH = 16
SETTINGS = {
    "in this process": (),
    "two forked workers": ("num_workers=2", "multiprocessing_context=fork"),
    "two spawned workers": ("num_workers=2", "multiprocessing_context=spawn"),
    "kept workers": ("num_workers=2", "persistent_workers=true", "prefetch_factor=3"),
}
# Python 3.12 warns of every fork in a process with threads, which torch's own loader does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def rows(batches) -> list[tuple[bytes, int]]:
    return [
        (source.numpy().tobytes(), int(target))
        for sources, targets in batches
        for source, target in zip(sources, targets, strict=True)
    ]


def truth(job) -> list[tuple[bytes, int]]:
    samples = job.dataset.open()
    return rows([default_collate([samples[index] for index in range(len(samples))])])


def children() -> int:
    return len(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("loader", options("loader"))
def test_every_sample_comes_once_an_epoch_with_its_label_in_the_order(
    prepared_job, loader, settings
):
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    wanted, plan = truth(job), job.plan(seed=7)
    with job.loader.open(prepared, plan) as epochs:
        for epoch in (0, 1, 0):
            order = epoch_indices(plan.order, len(wanted), 7, epoch).tolist()
            assert rows(epochs(epoch)) == [wanted[index] for index in order]


@pytest.mark.parametrize("dataset", ["digits", "mydataset"])
@pytest.mark.parametrize("loader", options("loader"))
def test_batches_have_the_datasets_shapes_and_dtypes_and_the_last_is_short(
    prepared_job, loader, dataset
):
    size = MYDATASET if dataset == "mydataset" else ("dataset=digits",)
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *size)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    first = default_collate([job.dataset.open()[0]])
    assert all(leaves_of(batch) == leaves_of(first) == prepared.sample for batch in batches)
    sizes = [len(targets) for _, targets in batches]
    assert sizes == [BATCH] * (prepared.num_samples // BATCH) + [prepared.num_samples % BATCH]


@pytest.mark.parametrize("loader", options("loader"))
def test_drop_last_drops_the_short_batch_only(prepared_job, loader):
    job, prepared = prepared_job(
        f"loader={loader}", "drop_last=true", f"batch_size={BATCH}", *MYDATASET
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert [len(targets) for _, targets in epochs(0)] == [BATCH] * (203 // BATCH)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("loader", options("loader"))
def test_closing_early_leaves_no_process_and_no_thread(prepared_job, loader, settings):
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    multiprocessing.resource_tracker.ensure_running()  # lives as long as this process
    before = children(), threading.active_count(), set(os.listdir("/dev/shm"))
    with job.loader.open(prepared, job.plan(0)) as epochs:
        for _ in epochs(0):
            break
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=1)
    assert (children(), threading.active_count(), set(os.listdir("/dev/shm"))) == before


@pytest.mark.parametrize("loader", options("loader"))
def test_nothing_starts_before_the_epoch_is_asked_for(prepared_job, loader):
    job, prepared = prepared_job(f"loader={loader}", "num_workers=2", *MYDATASET)
    before = children()
    with job.loader.open(prepared, job.plan(0)):
        assert children() == before


@pytest.mark.parametrize("loader", options("loader"))
def test_a_loader_is_plain_data(loader):
    job = compose_job(f"loader={loader}", *MYDATASET)
    assert pickle.loads(pickle.dumps(job)) == job
    assert len(pickle.dumps(job)) < 4096


def spawned_workers_memory(prepared_job, loader, count) -> tuple[float, float, float]:
    """MiB of the store, of its pages that a spawned worker copied, private to the worker."""
    job, prepared = prepared_job(
        f"loader={loader}",
        "dataset=mydataset",
        f"dataset.count={count}",
        "num_workers=1",
        "multiprocessing_context=spawn",
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = iter(epochs(0))
        next(batches)
        (worker,) = [
            child
            for child in psutil.Process().children(recursive=True)
            if "spawn_main" in " ".join(child.cmdline())
        ]
        maps = worker.memory_maps(grouped=False)
    ours = [one for one in maps if str(prepared.folder) in one.path]
    assert ours
    copied, private = (sum(one.anonymous for one in some) / 2**20 for some in (ours, maps))
    return prepared.disk_mib, copied, private


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are copies")
@pytest.mark.parametrize("loader", ["np_memmap", "tensorclass_memmap"])
def test_a_spawned_worker_maps_the_file_again_and_copies_none_of_it(prepared_job, loader):
    _, _, base_mib = spawned_workers_memory(prepared_job, loader, 500)
    store_mib, copied_mib, private_mib = spawned_workers_memory(prepared_job, loader, 40_000)
    assert store_mib > 100
    assert copied_mib < 1
    assert private_mib - base_mib < 20


def test_workers_start_as_in_a_plain_script(prepared_job):
    job, _ = prepared_job("num_workers=2", *MYDATASET)
    assert job.plan(0).multiprocessing_context == multiprocessing.get_all_start_methods()[0]
