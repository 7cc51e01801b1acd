"""Contract of every loader in conf/loader."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import time

import optree
import pytest
import torch
from batches import child_processes, collate_all, has_planned_order, rows, sizes
from child_processes import command_line
from options import MYDATASET, compose_job, options, rejects_settings, require_library
from torch.utils.data import default_collate

from fastloop.core.index_batches import IndexBatches, epoch_indices, index_batches
from fastloop.core.loading_settings import LoadingSettings
from fastloop.core.plan import Plan
from fastloop.core.types import Unsupported
from fastloop.data.digest import leaves_of
from fastloop.data.shuffling import shuffling_of
from fastloop.suite.workloads import READ_SAMPLES
from fastloop.trial.support import check_support

BATCH = 16
SPAWNED = ("raw", "tensorclass")
"""Loaders with spawned workers here; below, each store is mapped again by one."""
SETTINGS = {
    "in this process": (),
    "two forked workers": ("num_workers=2", "multiprocessing_context=fork"),
    "one spawned worker": ("num_workers=1", "multiprocessing_context=spawn"),
    "persistent workers": ("num_workers=2", "persistent_workers=true", "prefetch_factor=3"),
}


def with_workers(spawned: tuple[str, ...]):
    """Parameters: each loader with each of the settings; with spawned workers these alone."""
    return pytest.mark.parametrize(
        ("loader", "settings"),
        [
            pytest.param(
                loader,
                settings,
                id=f"{loader}-{name}",
                marks=pytest.mark.heavy if name == "one spawned worker" else (),  # it imports torch
            )
            for loader in options("loader")
            for name, settings in SETTINGS.items()
            if name != "one spawned worker" or loader in spawned
        ],
    )


# Python 3.12 warns when a process with threads forks, which torch's own loader does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@with_workers(SPAWNED)
def test_loader_delivers_every_sample_once_per_epoch_in_order(prepared_job, loader, settings):
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    if rejects_settings(job, prepared, settings):
        return
    wanted, plan = rows([collate_all(job.dataset)]), job.plan(seed=7)
    spawned = "multiprocessing_context=spawn" in settings  # each spawn imports torch
    with job.loader.open(prepared, plan) as epochs:
        numbers = (1,) if spawned else (0, 1, 0)
        delivered = [rows(epochs(epoch)) for epoch in numbers]
    for epoch, rows_ in zip(numbers, delivered, strict=True):
        assert has_planned_order(job, plan, epoch, rows_, wanted)
    assert spawned or delivered[0] == delivered[2] != delivered[1]


@pytest.mark.parametrize("dataset", ["digits", "mydataset"])
@pytest.mark.parametrize("loader", options("loader"))
def test_loader_keeps_shapes_and_dtypes_and_delivers_a_short_last_batch(
    prepared_job, loader, dataset
):
    overrides = MYDATASET if dataset == "mydataset" else ("dataset=digits",)
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *overrides)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    first = default_collate([job.dataset.open()[0]])
    assert all(leaves_of(batch) == leaves_of(first) == prepared.sample for batch in batches)
    remainder = prepared.num_samples % BATCH
    assert sizes(batches) == [BATCH] * (prepared.num_samples // BATCH) + [remainder]


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_with_drop_last_drops_only_the_short_batch(prepared_job, loader):
    job, prepared = prepared_job(
        f"loader={loader}", "drop_last=true", f"batch_size={BATCH}", *MYDATASET
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert sizes(epochs(0)) == [BATCH] * (203 // BATCH)


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("loader", options("loader"))
def test_loader_never_changes_a_delivered_batch(prepared_job, loader, order):
    settings = (f"order={order}",)
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    if rejects_settings(job, prepared, settings):
        return
    plan = job.plan(0)
    with job.loader.open(prepared, plan) as epochs:
        wanted = [rows(epochs(epoch)) for epoch in (0, 1)]
        delivered = [list(epochs(epoch)) for epoch in (0, 1)]
        assert [rows(batches) for batches in delivered] == wanted
        for leaf in optree.tree_leaves(delivered):
            leaf.zero_()
        assert [rows(epochs(epoch)) for epoch in (0, 1)] == wanted


@with_workers(SPAWNED[:1])
def test_loader_closed_early_leaves_no_process_thread_or_shared_memory(
    prepared_job, monkeypatch, loader, settings
):
    job, prepared = prepared_job(f"loader={loader}", f"batch_size={BATCH}", *MYDATASET, *settings)
    if rejects_settings(job, prepared, settings):
        return
    multiprocessing.resource_tracker.ensure_running()  # lives as long as this process
    # All processes share /dev/shm: name the semaphores after this one, as torch names its files.
    semaphores = f"fastloop-{os.getpid()}"
    monkeypatch.setitem(multiprocessing.current_process()._config, "semprefix", f"/{semaphores}")
    children, threads = child_processes(), {*threading.enumerate()}
    with job.loader.open(prepared, job.plan(0)) as epochs:
        for _ in epochs(0):
            break
        pids = [os.getpid(), *(child.pid for child in child_processes())]
    for _ in range(1500):  # processes and threads may take a moment to end
        # Threads of an earlier test may end meanwhile, so that their number shows nothing.
        left = child_processes() - children, {*threading.enumerate()} - threads
        if not any(left):
            break
        time.sleep(0.02)
    assert left == (set(), set())
    prefixes = (f"sem.{semaphores}", *(f"torch_{pid}_" for pid in pids))
    assert [name for name in os.listdir("/dev/shm") if name.startswith(prefixes)] == []


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_starts_no_process_before_an_epoch_is_requested(prepared_job, loader):
    job, prepared = prepared_job(f"loader={loader}", "num_workers=2", *MYDATASET)
    before = child_processes()
    if not rejects_settings(job, prepared, ("num_workers=2",)):
        with job.loader.open(prepared, job.plan(0)):
            assert child_processes() == before


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_delivers_pinned_memory_or_rejects_the_setting(prepared_job, loader):
    settings = ("pin_memory=true",)
    job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *settings)
    if rejects_settings(job, prepared, settings) or not torch.accelerator.is_available():
        return  # without an accelerator the whole job is rejected, see check_support
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert all(leaf.is_pinned() for batch in epochs(0) for leaf in optree.tree_leaves(batch))


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_applies_a_worker_transform_or_rejects_the_setting(prepared_job, loader):
    settings = ("transform=normalize", "transform.where=worker")
    job, prepared = prepared_job(f"loader={loader}", "dataset=digits", *settings)
    if rejects_settings(job, prepared, settings):
        return
    plan, samples = job.plan(0), job.transform.transform_batch(collate_all(job.dataset))
    order = epoch_indices(plan.order, prepared.num_samples, 0, 0)
    with job.loader.open(prepared, plan) as epochs:
        assert rows(epochs(0)) == rows([[leaf[order] for leaf in samples]])


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_collates_uint8_images_or_rejects_the_setting(prepared_job, loader):
    settings = ("collate=fast",)
    job, prepared = prepared_job(f"loader={loader}", "dataset=digits", *settings)
    if rejects_settings(job, prepared, settings):
        return
    plan, samples = job.plan(0), collate_all(job.dataset)
    order = epoch_indices(plan.order, prepared.num_samples, 0, 0)
    with job.loader.open(prepared, plan) as epochs:
        batches = [job.collate.finish(batch, job.dataset.uint8_scale) for batch in epochs(0)]
    assert rows(batches) == rows([[leaf[order] for leaf in samples]])


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_pickles_as_plain_data(loader):
    job = compose_job(f"loader={loader}", *MYDATASET)
    assert pickle.loads(pickle.dumps(job)) == job
    assert len(pickle.dumps(job)) < 4096


def measure_spawned_worker(prepared_job, loader, count) -> tuple[float, float, float]:
    """MiB (of the store, of its pages that a spawned worker copied, private to the worker)."""
    job, prepared = prepared_job(
        f"loader={loader}",
        "dataset=mydataset",
        f"dataset.count={count}",
        "dataset.shape=[3,64,64]",
        "num_workers=1",
        "multiprocessing_context=spawn",
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = iter(epochs(0))
        next(batches)
        (worker,) = [child for child in child_processes() if "spawn_main" in command_line(child)]
        maps = worker.memory_maps(grouped=False)
    store_maps = [mapping for mapping in maps if str(prepared.folder) in mapping.path]
    assert store_maps
    copied, private = (
        sum(mapping.anonymous for mapping in group) / 2**20 for group in (store_maps, maps)
    )
    return prepared.disk_mib, copied, private


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which pages are copies")
@pytest.mark.parametrize(
    "loader",
    [
        "np_memmap",
        pytest.param("tensorclass_memmap", marks=pytest.mark.nightly),
        pytest.param("torch_storage", marks=pytest.mark.nightly),
    ],
)
def test_spawned_worker_maps_the_store_again_without_copying_it(prepared_job, loader):
    _, _, base_mib = measure_spawned_worker(prepared_job, loader, 70)
    store_mib, copied_mib, private_mib = measure_spawned_worker(prepared_job, loader, 1000)
    assert store_mib > 45
    assert copied_mib < 1
    assert private_mib - base_mib < 20


class Uneven:
    """Order whose pieces line up with no batch size."""

    complete = True

    def length(self, num_samples):
        return num_samples

    def pieces(self, num_samples, seed, epoch):
        indices = torch.arange(num_samples).flip(0)
        yield from indices.split([1, 0, 30, 5, 7, num_samples - 43])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 6, 16, 50, 51])
def test_index_batches_cut_the_epoch_into_equal_sizes(size, drop_last):
    loading = LoadingSettings(batch_size=size, drop_last=drop_last)
    plan = Plan(order=Uneven(), seed=0, loading=loading)
    batches = [batch.tolist() for batch in index_batches(plan, 50, 0)]
    indices = list(reversed(range(50)))
    wanted = [indices[start : start + size] for start in range(0, 50, size)]
    assert batches == [batch for batch in wanted if len(batch) == size or not drop_last]
    assert len(IndexBatches(plan, 50)) == len(batches)


def test_loader_workers_start_with_the_default_method(prepared_job):
    job, _ = prepared_job("num_workers=2", *MYDATASET)
    assert job.plan(0).loading.multiprocessing_context == multiprocessing.get_all_start_methods()[0]


OPTIONAL_SETTINGS = {
    "workers": ("num_workers=2",),
    "persistent workers": ("num_workers=2", "persistent_workers=true"),
    "a transform": ("transform=normalize", "transform.where=worker"),
    "a collate": ("collate=fast",),
}


@pytest.mark.parametrize("settings", OPTIONAL_SETTINGS.values(), ids=OPTIONAL_SETTINGS.keys())
@pytest.mark.parametrize("loader", options("loader"))
def test_check_support_rejects_settings_that_a_loader_ignores(prepared_job, loader, settings):
    job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *settings)
    if not rejects_settings(job, prepared, settings):
        check_support(job)
        return
    with pytest.raises(
        Unsupported, match=r"has no such setting|has no uint8 images|is not fork-safe"
    ):
        check_support(job)


@pytest.mark.parametrize(
    ("loader", "buffer", "one_shard"),
    [
        ("webdataset", "shuffle_buffer", "loader.store.num_shards=1"),
        ("hf_iterable", "buffer_size", "loader.num_shards=1"),
    ],
)
def test_buffer_of_a_loader_sets_how_far_samples_move(prepared_job, loader, buffer, one_shard):
    data = ("dataset=integers", "dataset.count=400", "benchmark=traversal", f"batch_size={BATCH}")
    distances = []
    for size in (1, 50, 400):
        settings = (f"loader={loader}", f"loader.{buffer}={size}", one_shard)
        job, prepared = prepared_job(*settings, *data)
        check_support(job)
        with job.loader.open(prepared, job.plan(0)) as epochs:
            places = torch.cat(optree.tree_leaves([*epochs(0)])).numpy()
        shuffling = shuffling_of({0: places}, 400, BATCH)
        assert shuffling.each_sample_once
        distances.append(shuffling.distance)
    assert distances[0] == 0
    assert 0 < distances[1] < 0.5 < distances[2]


@pytest.mark.heavy
@pytest.mark.parametrize(("order", "is_once"), [("blocks", True), ("random", False)])
def test_parquet_decodes_each_row_group_once_an_epoch_if_they_are_the_blocks(
    prepared_job, monkeypatch, order, is_once
):
    file, decoded = require_library("pyarrow.parquet").ParquetFile, []
    read = file.read_row_group
    monkeypatch.setattr(
        file,
        "read_row_group",
        lambda self, number, **settings: decoded.append(number) or read(self, number, **settings),
    )
    data = ("dataset=integers", "dataset.count=400", "benchmark=traversal", f"batch_size={BATCH}")
    groups = ("loader.store.row_group_rows=20", "loader.groups_in_memory=3", f"order={order}")
    blocks = ("order.block_size=20",) if is_once else ()
    job, prepared = prepared_job("loader=parquet", *data, *groups, *blocks)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        decoded.clear()
        assert sum(sizes(epochs(0))) == 400
    assert (len(decoded) == 20) == is_once
    assert {*decoded} == {*range(20)}


@pytest.mark.parametrize("loader", READ_SAMPLES)
def test_loader_without_a_store_pads_samples_of_any_length(prepared_job, loader):
    texts = ("dataset=texts", "dataset.count=50", "collate=pad", f"batch_size={BATCH}")
    texts += ("benchmark=traversal", "placement=recursive")
    job, prepared = prepared_job(f"loader={loader}", "loader.store=null", *texts)
    check_support(job)
    raw, _ = prepared_job("loader=raw", *texts)
    plan = job.plan(seed=7)
    with job.loader.open(prepared, plan) as epochs, raw.loader.open(prepared, plan) as wanted:
        padded, others = list(epochs(1)), list(wanted(1))
    assert len(padded) == len(others) == 4
    for batch, other in zip(padded, others, strict=True):
        leaves, its = optree.tree_leaves(batch), optree.tree_leaves(other)
        assert all(torch.equal(leaf, one) for leaf, one in zip(leaves, its, strict=True))


@pytest.mark.parametrize(
    "settings",
    [("loader=spdl_process", "loader.store=null"), ("loader=raw", "num_workers=2")],
    ids=["spdl_process", "raw"],
)
def test_forked_processes_use_no_torch_threads_of_their_parent(prepared_job, settings):
    """A fork has none of its parent's threads, for which an operation would wait for ever."""
    data = ("dataset._target_=my_code.TorchThreads", "benchmark=traversal", "placement=recursive")
    job, prepared = prepared_job(*settings, *data, f"batch_size={BATCH}")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with job.loader.open(prepared, job.plan(0)) as epochs:
            assert {int(number) for batch in epochs(0) for number in batch[0]} == {1}
    finally:
        torch.set_num_threads(before)
