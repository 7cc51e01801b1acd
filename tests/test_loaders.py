"""The contract of every loader found in conf/loader."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import time

import optree
import psutil
import pytest
import torch
from options import MYDATASET, compose_job, options, refuses
from torch.utils.data import default_collate

from fastloop.digest import leaves_of
from fastloop.job import check_support
from fastloop.plans import IndexBatches, epoch_indices, index_batches
from fastloop.types import Plan, Unsupported

BATCH = 16
SETTINGS = {
    "in this process": (),
    "two forked workers": ("num_workers=2", "multiprocessing_context=fork"),
    "a spawned worker": ("num_workers=1", "multiprocessing_context=spawn"),
    "kept workers": ("num_workers=2", "persistent_workers=true", "prefetch_factor=3"),
}
# Python 3.12 warns of every fork in a process with threads, which torch's own loader does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def rows(batches) -> list[tuple[bytes, ...]]:
    """Each sample, as the bytes of its leaves."""
    return [
        row
        for batch in batches
        for row in zip(*(bytes_of(leaf) for leaf in optree.tree_leaves(batch)), strict=True)
    ]


def bytes_of(leaf) -> list[bytes]:
    flat = leaf.contiguous().view(len(leaf), -1).view(torch.uint8).numpy()
    return [row.tobytes() for row in flat]


def sizes(batches) -> list[int]:
    return [len(optree.tree_leaves(batch)[0]) for batch in batches]


def whole(dataset):
    """All samples in one batch."""
    samples = dataset.open()
    return default_collate([samples[index] for index in range(len(samples))])


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("loader", options("loader"))
def test_every_sample_comes_once_an_epoch_with_its_label_in_the_order(
    prepared_job, loader, settings
):
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    if refuses(job, prepared, settings):
        return
    wanted, plan = rows([whole(job.dataset)]), job.plan(seed=7)
    spawned = "multiprocessing_context=spawn" in settings  # each of which imports torch
    with job.loader.open(prepared, plan) as epochs:
        for epoch in (1,) if spawned else (0, 1, 0):
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
    left = prepared.num_samples % BATCH
    assert sizes(batches) == [BATCH] * (prepared.num_samples // BATCH) + [left]


@pytest.mark.parametrize("loader", options("loader"))
def test_drop_last_drops_the_short_batch_only(prepared_job, loader):
    job, prepared = prepared_job(
        f"loader={loader}", "drop_last=true", f"batch_size={BATCH}", *MYDATASET
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert sizes(epochs(0)) == [BATCH] * (203 // BATCH)


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("loader", options("loader"))
def test_a_batch_belongs_to_whoever_holds_it(prepared_job, loader, order):
    settings = (f"order={order}",)
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    if refuses(job, prepared, settings):
        return
    plan = job.plan(0)
    with job.loader.open(prepared, plan) as epochs:
        seen = [rows(epochs(epoch)) for epoch in (0, 1)]
        held = [list(epochs(epoch)) for epoch in (0, 1)]
        assert [rows(one) for one in held] == seen
        for leaf in optree.tree_leaves(held):
            leaf.zero_()
        assert [rows(epochs(epoch)) for epoch in (0, 1)] == seen


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("loader", options("loader"))
def test_closing_early_leaves_no_process_no_thread_and_no_shared_memory(
    prepared_job, monkeypatch, loader, settings
):
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    if refuses(job, prepared, settings):
        return
    multiprocessing.resource_tracker.ensure_running()  # lives as long as this process
    # /dev/shm is everybody's: semaphores get a name that tells whose they are, as torch's files do.
    semaphores = f"fastloop-{os.getpid()}"
    monkeypatch.setitem(multiprocessing.current_process()._config, "semprefix", f"/{semaphores}")
    before = children(), threading.active_count()
    with job.loader.open(prepared, job.plan(0)) as epochs:
        for _ in epochs(0):
            break
        pids = [os.getpid(), *(one.pid for one in children())]
    for _ in range(50):  # what has been told to end may take a moment
        if (children(), threading.active_count()) == before:
            break
        time.sleep(0.02)
    assert (children(), threading.active_count()) == before
    ours = (f"sem.{semaphores}", *(f"torch_{pid}_" for pid in pids))
    assert [name for name in os.listdir("/dev/shm") if name.startswith(ours)] == []


@pytest.mark.parametrize("loader", options("loader"))
def test_nothing_starts_before_the_epoch_is_asked_for(prepared_job, loader):
    job, prepared = prepared_job(f"loader={loader}", "num_workers=2", *MYDATASET)
    before = children()
    if not refuses(job, prepared, ("num_workers=2",)):
        with job.loader.open(prepared, job.plan(0)):
            assert children() == before


@pytest.mark.parametrize("loader", options("loader"))
def test_pinned_memory_is_delivered_or_refused(prepared_job, loader):
    settings = ("pin_memory=true",)
    job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *settings)
    if refuses(job, prepared, settings) or not torch.accelerator.is_available():
        return  # without an accelerator the whole job is refused, see check_support
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert all(leaf.is_pinned() for batch in epochs(0) for leaf in optree.tree_leaves(batch))


@pytest.mark.parametrize("loader", options("loader"))
def test_a_transform_in_the_worker_is_done_or_refused(prepared_job, loader):
    settings = ("transform=normalize", "transform.where=worker")
    job, prepared = prepared_job(f"loader={loader}", "dataset=digits", *settings)
    if refuses(job, prepared, settings):
        return
    plan, all_ = job.plan(0), job.transform.of_a_batch(whole(job.dataset))
    order = epoch_indices(plan.order, prepared.num_samples, 0, 0)
    with job.loader.open(prepared, plan) as epochs:
        assert rows(epochs(0)) == rows([[leaf[order] for leaf in all_]])


@pytest.mark.parametrize("loader", options("loader"))
def test_images_in_uint8_are_collated_or_refused(prepared_job, loader):
    settings = ("collate=fast",)
    job, prepared = prepared_job(f"loader={loader}", "dataset=digits", *settings)
    if refuses(job, prepared, settings):
        return
    plan, all_ = job.plan(0), whole(job.dataset)
    order = epoch_indices(plan.order, prepared.num_samples, 0, 0)
    with job.loader.open(prepared, plan) as epochs:
        batches = [job.collate.finish(batch, job.dataset.uint8_scale) for batch in epochs(0)]
    assert rows(batches) == rows([[leaf[order] for leaf in all_]])


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
        living = [child for child in children() if child.status() != psutil.STATUS_ZOMBIE]
        (worker,) = [child for child in living if "spawn_main" in " ".join(child.cmdline())]
        maps = worker.memory_maps(grouped=False)
    ours = [one for one in maps if str(prepared.folder) in one.path]
    assert ours
    copied, private = (sum(one.anonymous for one in some) / 2**20 for some in (ours, maps))
    return prepared.disk_mib, copied, private


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are copies")
@pytest.mark.parametrize("loader", ["np_memmap", "tensorclass_memmap", "torch_storage"])
def test_a_spawned_worker_maps_the_file_again_and_copies_none_of_it(prepared_job, loader):
    _, _, base_mib = spawned_workers_memory(prepared_job, loader, 500)
    store_mib, copied_mib, private_mib = spawned_workers_memory(prepared_job, loader, 16_000)
    assert store_mib > 45
    assert copied_mib < 1
    assert private_mib - base_mib < 20


class Uneven:
    """Pieces that no batch fits into."""

    complete = True

    def length(self, num_samples):
        return num_samples

    def pieces(self, num_samples, seed, epoch):
        indices = torch.arange(num_samples).flip(0)
        yield from indices.split([1, 0, 30, 5, 7, num_samples - 43])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 6, 16, 50, 51])
def test_batches_of_indices_are_the_epoch_cut(size, drop_last):
    plan = Plan(order=Uneven(), seed=0, batch_size=size, drop_last=drop_last)
    found = [batch.tolist() for batch in index_batches(plan, 50, 0)]
    all_ = list(reversed(range(50)))
    wanted = [all_[start : start + size] for start in range(0, 50, size)]
    assert found == [one for one in wanted if len(one) == size or not drop_last]
    assert len(IndexBatches(plan, 50)) == len(found)


def test_workers_start_as_in_a_plain_script(prepared_job):
    job, _ = prepared_job("num_workers=2", *MYDATASET)
    assert job.plan(0).multiprocessing_context == multiprocessing.get_all_start_methods()[0]


OTHERS = {
    "workers": ("num_workers=2",),
    "kept workers": ("num_workers=2", "persistent_workers=true"),
    "a transform": ("transform=normalize", "transform.where=worker"),
    "a collate": ("collate=fast",),
}


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("loader", options("loader"))
def test_what_a_loader_refuses_as_it_is_opened_is_known_before_anything_is_prepared(
    prepared_job, loader, settings
):
    job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *settings)
    if not refuses(job, prepared, settings):
        check_support(job)
        return
    with pytest.raises(Unsupported, match=r"has no such setting|has no uint8 images"):
        check_support(job)
