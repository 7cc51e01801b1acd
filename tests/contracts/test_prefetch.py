"""Prefetching: every batch once, whole and in order, and no resource left behind."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import threading
import time
import traceback
from contextlib import contextmanager
from functools import cache, partial

import optree
import os_threads
import psutil
import pytest
import torch
from batch_trees import FLAT, NESTED, assert_same, bind_placement
from batches import collate_all, has_planned_order, rows
from hypothesis import given
from hypothesis import strategies as st
from options import MYDATASET, compose_job, options, rejects_settings, require_cuda
from parents_garbage import make_garbage

from fastloop.core.cgroup import memory_left
from fastloop.core.index_batches import epoch_indices
from fastloop.core.move_tensors import map_tensors
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Invalid, JobFailed, Unsupported
from fastloop.options.launcher.single import SingleLauncher
from fastloop.options.loader.device_resident import check_fits, free_bytes
from fastloop.trial.device_delivery import PinnedBuffer, loader_opener, place_through_pinned
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.prefetch.process import prefetch_by_process, share_batch
from fastloop.trial.prefetch.stream import DeliveryStream, prefetch_by_stream
from fastloop.trial.prefetch.thread import prefetch_by_thread
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

CPU = torch.device("cpu")
FIRST_METHOD = multiprocessing.get_all_start_methods()[0]
MECHANISMS = {
    "thread": prefetch_by_thread,
    "process": partial(prefetch_by_process, start_method=FIRST_METHOD),
}
PREFETCH_SETTINGS = {
    name: (f"device_prefetch_by={name}", "device_prefetch=2") for name in MECHANISMS
}
STORAGE_LOADERS = ("raw", "np_memmap", "index_loop", "numpy_loop", "tensorclass", "device_resident")
"""Loaders that keep their samples in different ways."""
TRAVERSAL = ("placement=recursive", "loader=raw", "benchmark=traversal")
TRIAL = ("dataset=mydataset", "dataset.count=300", "epochs=1", "loader=np_memmap")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
# Python 3.12 warns when a process with threads forks, which torch's own loader does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def identity(batch):
    return batch


def generate_batches(epoch: int, count: int):
    """Batches that hold their number and epoch, each in memory of its own."""
    for number in range(count):
        yield {"x": torch.full((3, 2), float(number)), "epoch": epoch, "name": ["a", None]}


@contextmanager
def open_prefetched(mechanism: str, epochs, deliver=identity, ahead: int = 2):
    """Prefetched epochs of a function that returns the batches of an epoch by its number."""

    @contextmanager
    def open_source():
        yield epochs

    with MECHANISMS[mechanism](open_source, deliver, ahead, CPU) as prefetched:
        yield prefetched


def count_resources() -> tuple[int, ...]:
    """Numbers of child processes, threads and open file descriptors."""
    gc.collect()
    process = psutil.Process()
    return len(process.children(recursive=True)), threading.active_count(), process.num_fds()


def return_to(before: tuple[int, ...]) -> bool:
    """True once the resources are those of before; a queue's thread takes a moment to end."""
    for _ in range(6000):
        if count_resources()[: len(before)] == before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("loader", options("loader"))
def test_prefetch_delivers_every_sample_once_per_epoch_in_order(prepared_job, loader):
    job, prepared = prepared_job(
        f"loader={loader}", *MYDATASET, *PREFETCH_SETTINGS["thread"], "batch_size=16"
    )
    assert not rejects_settings(job, prepared, ())
    wanted, plan = rows([collate_all(job.dataset)]), job.plan(seed=7)
    before = threading.active_count()
    with loader_opener(job, prepared, plan, CPU)() as epochs:
        for epoch in (0, 1, 0):
            assert has_planned_order(job, plan, epoch, rows(epochs(epoch)), wanted)
        for _ in epochs(1):
            break
    assert os_threads.falls_to(before, threading.active_count)  # grain does not join its threads


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("loader", STORAGE_LOADERS)
def test_process_prefetch_never_changes_a_delivered_batch(prepared_job, loader, order):
    overrides = (f"loader={loader}", f"order={order}", "batch_size=16")
    job, prepared = prepared_job(*overrides, *MYDATASET, *PREFETCH_SETTINGS["process"])
    wanted, plan = rows([collate_all(job.dataset)]), job.plan(seed=7)
    indices = epoch_indices(plan.order, len(wanted), 7, 0).tolist()
    with loader_opener(job, prepared, plan, CPU)() as epochs:
        for _ in range(2):
            batches = list(epochs(0))
            assert rows(batches) == [wanted[index] for index in indices]
            for leaf in optree.tree_leaves(batches):
                leaf.zero_()


@pytest.mark.parametrize("mechanism", [pytest.param("thread", marks=pytest.mark.heavy), "process"])
def test_prefetch_keeps_persistent_workers(prepared_job, mechanism):
    workers = ("num_workers=2", "persistent_workers=true", "loader=np_memmap")
    job, prepared = prepared_job(
        *workers, *MYDATASET, *PREFETCH_SETTINGS[mechanism], "batch_size=16"
    )
    wanted, plan = sorted(rows([collate_all(job.dataset)])), job.plan(0)
    before, worker_pids = count_resources()[:2], []
    with loader_opener(job, prepared, plan, CPU)() as epochs:
        for epoch in range(3):
            assert sorted(rows(epochs(epoch))) == wanted
            worker_pids.append({child.pid for child in psutil.Process().children(recursive=True)})
    assert len(worker_pids[0]) >= 2
    assert worker_pids[0] == worker_pids[1] == worker_pids[2]
    assert return_to(before)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_prefetch_loses_and_repeats_no_batch_at_any_consumer_speed(mechanism):
    with open_prefetched(
        mechanism, lambda epoch: generate_batches(epoch % 1000, epoch // 1000), ahead=3
    ) as epochs:

        @given(st.integers(0, 12), st.integers(0, 12), st.sets(st.integers(0, 12)))
        def check(count, until, slow_at):
            batches = []
            for number, batch in enumerate(epochs(1000 * count + 7)):
                batches.append(batch)
                if number in slow_at:
                    time.sleep(0.002)
                if number == until:
                    break
            assert [float(batch["x"].sum()) for batch in batches] == [
                6.0 * number for number in range(min(count, until + 1))
            ]
            assert all(batch["epoch"] == 7 and batch["name"] == ["a", None] for batch in batches)
            assert all(list(batch) == ["x", "epoch", "name"] for batch in batches)

        check()


@pytest.mark.parametrize("ahead", [1, 4])
def test_prefetch_loads_exactly_the_requested_number_ahead(ahead):
    loaded = []

    def epochs(epoch):
        for batch in generate_batches(epoch, 20):
            loaded.append(batch)
            yield batch

    with open_prefetched("thread", epochs, ahead=ahead) as prefetched:
        for number, _ in enumerate(prefetched(0), start=1):
            while len(loaded) < min(20, number + ahead):
                time.sleep(0.0005)
            assert len(loaded) == min(20, number + ahead)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_prefetch_starts_nothing_before_an_epoch_is_requested(mechanism):
    before = count_resources()
    with open_prefetched(mechanism, partial(generate_batches, count=3)) as epochs:
        batches = epochs(0)
        assert count_resources() == before
        assert len(list(batches)) == 3
    assert return_to(before)


def consume(mechanism: str, epochs, step, deliver=identity) -> None:
    """Run the step on every batch of one epoch."""
    with open_prefetched(mechanism, epochs, deliver) as prefetched:
        for batch in prefetched(0):
            step(batch)


def fail_after_two_batches(epoch: int):
    yield from generate_batches(epoch, 2)
    raise BadData("sample 7 is broken")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_prefetch_raises_a_loader_error_with_its_traceback(mechanism):
    before, batches = count_resources()[:2], []
    with pytest.raises(BadData, match=r"^sample 7 is broken") as error:
        consume(mechanism, fail_after_two_batches, batches.append)
    assert len(batches) == 2
    assert "in fail_after_two_batches" in "".join(traceback.format_exception(error.value))
    del error
    assert return_to(before)


class PeculiarError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_process_prefetch_reports_an_error_that_cannot_be_pickled():
    def epochs(epoch):
        raise PeculiarError(1, 2)
        yield

    with pytest.raises(RuntimeError, match=r"^PeculiarError: 1 and 2"):
        consume("process", epochs, identity)


@pytest.mark.parametrize(
    ("mechanism", "stage"),
    [
        ("thread", "placement"),
        pytest.param("thread", "step", marks=pytest.mark.heavy),
        pytest.param("process", "placement", marks=pytest.mark.heavy),
        ("process", "step"),
    ],
)
def test_prefetch_cleans_up_after_an_error_in_placement_or_step(mechanism, stage):
    def fail(batch):
        if float(batch["x"][0, 0]) == 3:
            raise ValueError("no room for it")
        return batch

    before = count_resources()[:2]
    place, step = (fail, identity) if stage == "placement" else (identity, fail)
    with pytest.raises(ValueError, match="no room for it"):
        consume(mechanism, partial(generate_batches, count=9), step, place)
    assert return_to(before)


@pytest.mark.heavy
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_prefetch_leaks_no_resource_over_hundreds_of_epochs(mechanism, is_soak):
    with open_prefetched(mechanism, partial(generate_batches, count=3)) as epochs:
        list(epochs(0))
        before = count_resources()
        for epoch in range(2000 if is_soak else 500):
            batches = epochs(epoch)
            assert next(batches)["epoch"] == epoch
            assert len(list(batches) if epoch % 3 else []) in (0, 2)
            del batches
        assert count_resources() == before


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_prefetch_ends_a_referenced_epoch_with_its_loader(mechanism):
    before = count_resources()[:2]
    with open_prefetched(mechanism, partial(generate_batches, count=9)) as epochs:
        batches = iter(epochs(0))
        next(batches)
    assert return_to(before)
    assert list(batches) == []


def test_process_prefetch_loads_one_epoch_at_a_time():
    with open_prefetched("process", partial(generate_batches, count=9)) as epochs:
        batches = epochs(0)
        next(batches)
        with pytest.raises(RuntimeError, match="one epoch at a time"):
            next(epochs(1))
        assert len(list(batches)) == 8
        assert len(list(epochs(1))) == 9


def test_process_prefetch_reports_that_it_was_killed():
    def kill(batch):
        for child in multiprocessing.active_children():  # not the servers of the tests' commands
            child.kill()

    with pytest.raises(ChildProcessError, match="prefetching process has ended: killed by SIGKILL"):
        consume("process", partial(generate_batches, count=1000), kill)


def test_process_prefetch_leaves_garbage_to_its_parent():
    """Such as tensors on a GPU, which a fork can't free."""

    def collect_and_generate(epoch):
        gc.collect()
        yield from generate_batches(epoch, 3)

    freed_in = make_garbage()
    consume("process", collect_and_generate, identity)
    gc.collect()
    assert freed_in == [os.getpid()]


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mechanism", "overrides"),
    [  # each way of loading with one mechanism: what both share is tested above, with either
        ("thread", ("dataset=digits", "loader=raw", "collate=fast")),
        (
            "process",
            ("dataset=digits", "loader=raw", "transform=augment", "num_workers=1", "batches=5"),
        ),
        (
            "process",
            ("dataset=digits", "loader=np_memmap", "transform=normalize", "transform.where=device"),
        ),
        ("process", ("dataset=mydataset", "dataset.count=300", "cache=cold", "loader=np_memmap")),
        ("thread", (*("dataset=texts", "dataset.count=100", "collate=pad"), *TRAVERSAL)),
    ],
    ids=lambda value: value if isinstance(value, str) else value[2],
)
def test_trial_with_prefetch_runs_and_passes_the_gate(prepared_job, mechanism, overrides):
    settings = PREFETCH_SETTINGS[mechanism]
    job, prepared = prepared_job(*overrides, *settings, "epochs=1", "min_window_s=0")
    trial = run_trial(job, prepared, 0, now_ns())
    assert all(measurement.seconds > 0 for measurement in trial.benchmarks.values())
    if "training" in trial.benchmarks:
        plain = dataclasses.replace(job, device_prefetch=0, device_prefetch_by=None)
        losses = run_trial(plain, prepared, 0, now_ns()).benchmarks["training"].losses
        if "transform=augment" not in overrides:
            assert trial.benchmarks["training"].losses == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("settings", PREFETCH_SETTINGS.values(), ids=PREFETCH_SETTINGS.keys())
def test_instrumentation_with_prefetch_records_waits_and_places(prepared_job, settings):
    job, prepared = prepared_job(*TRIAL, *settings)
    attribution = run_instrumentation(job, prepared, "training")
    assert len(attribution.wait_s) == len(attribution.place_s) == 5
    assert attribution.first_batch_s > 0


class ReusingPlacement:
    """Placement that returns the same two buffers in turn."""

    def to(self, device):
        buffers: list = [None, None]

        def place(batch):
            buffers.reverse()
            if buffers[0] is None or len(buffers[0]) != len(batch[0]):
                buffers[0] = torch.empty_like(batch[0])
            return buffers[0].copy_(batch[0]), batch[1]

        return place


@pytest.mark.parametrize("settings", PREFETCH_SETTINGS.values(), ids=PREFETCH_SETTINGS.keys())
def test_gate_rejects_buffers_that_are_reused_under_prefetch(prepared_job, settings):
    job, prepared = prepared_job(*TRIAL, *settings, "batch_size=20")
    reusing = dataclasses.replace(job, placement=ReusingPlacement())
    with pytest.raises(Invalid, match="a batch changes after it was delivered"):
        run_trial(reusing, prepared, 0, now_ns())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("device_prefetch_by=thread",), "device_prefetch_by=thread needs device_prefetch"),
        (("device_prefetch=2", "device_prefetch_by=stream"), "device_prefetch_by=stream: needs C"),
        (("pinned_buffers=4",), "pinned_buffers=4: needs CUDA, device is cpu"),
    ],
)
def test_prefetch_setting_that_needs_cuda_is_rejected_on_cpu(overrides, message):
    with pytest.raises(Unsupported) as error:
        check_support(compose_job("device=cpu", *overrides))
    assert str(error.value).startswith(message)


@pytest.mark.heavy
def test_process_prefetch_reports_an_unsupported_loader_setting(prepared_job):
    overrides = ("loader=index_loop", "num_workers=2", "dataset=mydataset", "dataset.count=300")
    job, prepared = prepared_job(*overrides, *PREFETCH_SETTINGS["process"])
    with pytest.raises(JobFailed, match=r"^unsupported: num_workers=2: loader=index_loop"):
        SingleLauncher(isolation="forkserver").call(run_trial, job, prepared, 0, now_ns())


TREES = FLAT | NESTED


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_share_batch_unpacks_to_the_same_batch(tree):
    shared = share_batch(tree)
    assert_same(tree, shared.unpack(), CPU)
    if not has_collections(tree):
        assert len(shared.memory) <= sum(leaf.nbytes + 63 for leaf in optree.tree_leaves(tree))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_pinned_buffer_copies_a_tree_into_its_own_memory(tree):
    buffer = PinnedBuffer(partial(torch.empty, dtype=torch.uint8))
    first = buffer.fill(tree)
    assert_same(tree, first, CPU)
    pointers = [leaf.data_ptr() for leaf in tensors(first)]
    assert not {leaf.data_ptr() for leaf in tensors(tree)} & set(pointers)
    if not has_collections(tree):  # a collection keeps its batch size
        smaller = map_tensors(lambda leaf: leaf[:2], tree)
        refilled = buffer.fill(smaller)
        assert_same(smaller, refilled, CPU)
        assert [leaf.data_ptr() for leaf in tensors(refilled)] == pointers


def has_collections(tree) -> bool:
    return any(not isinstance(leaf, torch.Tensor) for leaf in optree.tree_leaves(tree))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_process_prefetch_delivers_a_sparse_tensor():
    def epochs(epoch):
        yield (torch.eye(3).to_sparse(), torch.ones(2))

    with open_prefetched("process", epochs) as prefetched:
        ((sparse, dense),) = prefetched(0)
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert torch.equal(dense, torch.ones(2))


def tensors(tree) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    map_tensors(lambda leaf: (leaves.append(leaf), leaf)[1], tree)
    return leaves


@dataclasses.dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    name: str


def test_map_tensors_maps_every_tensor_of_a_dataclass():
    mapped = map_tensors(lambda leaf: leaf + 1, [Pair(torch.zeros(2), "a"), 3])
    assert (mapped[0].x.tolist(), mapped[0].name, mapped[1]) == ([1.0, 1.0], "a", 3)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=12))
def test_pinned_buffer_holds_batches_of_any_size_in_turn(sizes):
    buffer = PinnedBuffer(partial(torch.empty, dtype=torch.uint8))
    for number, (count, width) in enumerate(sizes):
        batch = (torch.full((count, width), number, dtype=torch.int16), torch.rand(count))
        assert_same(batch, buffer.fill(batch), CPU)


def test_device_resident_rejects_samples_that_do_not_fit():
    with pytest.raises(Unsupported, match=r"3,000 MiB of samples, 2,000 MiB are free on device c"):
        check_fits(3000 << 20, 2000 << 20, CPU)
    check_fits(2000 << 20, 2000 << 20, CPU)
    assert free_bytes(CPU) > 1 << 20


@pytest.mark.parametrize("version", [1, 2])
def test_memory_left_respects_the_limits_of_a_container(tmp_path, version):
    membership = tmp_path / "membership"
    membership.write_text(("4:memory:" if version == 1 else "0::") + "/a\n")
    folder = tmp_path / ("memory/a" if version == 1 else "a")
    limit, usage, prefix = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        2: ("memory.max", "memory.current", ""),
    }[version]
    folder.mkdir(parents=True)
    (folder / usage).write_text("700\n")
    pages = f"{prefix}active_file 200\n{prefix}inactive_file 100\n"
    (folder / "memory.stat").write_text(f"anon 400\n{pages}")
    assert list(memory_left(tmp_path, membership)) == []
    (folder / limit).write_text("1000\n")
    (folder.parent / limit).write_text("5000\n")
    assert list(memory_left(tmp_path, membership)) == [600, 5000]
    (folder / limit).write_text("max\n")
    assert list(memory_left(tmp_path, membership)) == [5000]
    assert list(memory_left(tmp_path, tmp_path / "none")) == []


# On a GPU. A separate test below the first three shows that each of them can fail.

MANY = 24
SLEEP_CYCLES = 20_000_000
"""Clock cycles, about 10 ms: far longer than any copy here takes."""


@cache
def host_batches(pinned: bool) -> list[torch.Tensor]:
    """Batches created in advance: pinning may synchronize with the device, which hides races."""
    return [
        torch.full((1 << 20,), number, dtype=torch.int32, pin_memory=pinned)
        for number in range(MANY)
    ]


@contextmanager
def open_host_batches():
    yield lambda epoch: iter(host_batches(pinned=True))


ON_CUDA = {
    "stream": prefetch_by_stream,
    "thread": prefetch_by_thread,
    "process": MECHANISMS["process"],
}


def copy_late(batch):
    """Copy to the device after a delay, into memory that held other data."""
    torch.cuda._sleep(SLEEP_CYCLES)
    return batch.to("cuda", non_blocking=True)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("mechanism", ["stream", "thread"])
def test_step_never_reads_a_batch_before_its_copy_has_ended(mechanism):
    device, sums = torch.device("cuda", 0), []
    with ON_CUDA[mechanism](open_host_batches, copy_late, 2, device) as epochs:
        for batch in epochs(0):
            sums.append(batch.sum())
    assert [int(total) for total in sums] == [number << 20 for number in range(MANY)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("mechanism", ["stream", "thread"])
def test_copy_never_overwrites_a_batch_that_a_step_still_reads(mechanism):
    device, sums = torch.device("cuda", 0), []
    move = partial(torch.Tensor.to, device="cuda", non_blocking=True)
    with ON_CUDA[mechanism](open_host_batches, move, 2, device) as epochs:
        for batch in epochs(0):
            torch.cuda._sleep(SLEEP_CYCLES)
            sums.append(batch.sum())
            del batch
    assert [int(total) for total in sums] == [number << 20 for number in range(MANY)]


@pytest.mark.gpu
@pytest.mark.parametrize("mechanism", ["stream", "thread"])
def test_allocator_never_reuses_indices_that_a_gather_still_reads(prepared_job, mechanism):
    device, copies, fillers = torch.device("cuda", 0), [], []
    overrides = ("loader=device_resident", "batch_size=50", "device=cuda", "order=random")
    job, prepared = prepared_job(*overrides, "dataset=mydataset", "dataset.count=300")
    require_cuda()
    plan = job.plan(seed=7)

    def delay(batches):
        for batch in batches:
            yield batch
            torch.cuda._sleep(SLEEP_CYCLES)  # before the next is gathered

    @contextmanager
    def open_source():
        with job.loader.open(prepared, plan) as epochs:
            yield lambda epoch: delay(epochs(epoch))

    with ON_CUDA[mechanism](open_source, identity, 4, device) as epochs:
        for batch in epochs(0):
            copies.append([leaf.clone() for leaf in batch])
            # As large as a clone of the labels, which may already lie in the indices' old block:
            # torch's allocator has split it then, and larger fillers would not fit into the rest.
            fillers += [torch.zeros(50, dtype=torch.int64, device=device) for _ in range(64)]
    samples, indices = (
        rows([collate_all(job.dataset)]),
        epoch_indices(plan.order, 300, 7, 0).tolist(),
    )
    delivered = rows([[leaf.cpu() for leaf in batch] for batch in copies])
    assert delivered == [samples[index] for index in indices]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("missing", ["event", "record_stream", "the stream's own memory"])
def test_stream_tests_fail_without_each_synchronization(prepared_job, monkeypatch, missing):
    if missing == "event":
        monkeypatch.setattr(DeliveryStream, "receive", lambda stream, placed, event: placed)
        test = test_step_never_reads_a_batch_before_its_copy_has_ended
    elif missing == "record_stream":
        monkeypatch.setattr(DeliveryStream, "receive", wait_without_record_stream)
        test = test_copy_never_overwrites_a_batch_that_a_step_still_reads
    else:
        monkeypatch.setattr(
            DeliveryStream, "start_epoch", lambda stream, epochs, epoch: iter(epochs(epoch))
        )
        test = partial(test_allocator_never_reuses_indices_that_a_gather_still_reads, prepared_job)
    with pytest.raises(AssertionError):
        test(mechanism="stream")


def wait_without_record_stream(stream, placed, event):
    torch.cuda.current_stream().wait_event(event)
    return placed


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("buffers", [1, 2, 5])
def test_pinned_buffer_is_not_overwritten_before_its_copy_has_ended(buffers):
    device = torch.device("cuda", 0)
    place = place_through_pinned(copy_late, buffers, device)
    batches = [place(batch) for batch in host_batches(pinned=False)]
    assert [int(batch.sum()) for batch in batches] == [number << 20 for number in range(MANY)]


@pytest.mark.gpu
@pytest.mark.parametrize("non_blocking", ["true", "false"])
@pytest.mark.parametrize("buffers", [1, 2, 5])
@pytest.mark.parametrize("placement", [name for name in options("placement") if name != "direct"])
def test_pinned_buffer_waits_for_the_copy_of_any_placement(placement, buffers, non_blocking):
    device = torch.device("cuda", 0)
    place = place_through_pinned(bind_placement(placement, device, non_blocking), buffers, device)
    sums = []
    for number in range(MANY):
        batch = {"x": torch.full((1 << 24,), number, dtype=torch.int32)}
        torch.cuda._sleep(SLEEP_CYCLES)
        sums.append(place(batch)["x"].sum())
    assert [int(total) for total in sums] == [number << 24 for number in range(MANY)]


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [(), ("pin_memory=true",), ("pinned_buffers=3",)])
@pytest.mark.parametrize("non_blocking", ["true", "false"])
@pytest.mark.parametrize("mechanism", [None, *ON_CUDA])
def test_trial_on_cuda_delivers_the_datasets_samples(prepared_job, mechanism, non_blocking, pinned):
    ahead = (f"device_prefetch_by={mechanism}", "device_prefetch=2") if mechanism else ()
    overrides = ("device=cuda", f"placement.non_blocking={non_blocking}", *pinned, *ahead)
    job, prepared = prepared_job(*TRIAL, *overrides)
    require_cuda()
    if mechanism == "process" and pinned == ("pin_memory=true",):
        with pytest.raises(Unsupported, match="shared memory"):
            check_support(job)
        return
    run_trial(job, prepared, 0, now_ns())


@pytest.mark.gpu
@pytest.mark.parametrize("mechanism", ["stream", "thread"])
@pytest.mark.parametrize("overrides", [("loader=device_resident",), ("loader=raw", "collate=fast")])
def test_device_work_of_loader_and_collate_stays_in_order(prepared_job, mechanism, overrides):
    ahead = (f"device_prefetch_by={mechanism}", "device_prefetch=2", "pinned_buffers=2", "epochs=1")
    job, prepared = prepared_job("dataset=digits", "device=cuda", *overrides, *ahead)
    require_cuda()
    benchmarks = run_trial(job, prepared, 0, now_ns()).benchmarks  # raises where samples differ
    assert {measurement.samples for measurement in benchmarks.values()} == {1797}
