"""What runs ahead of the loop: every batch once, whole, in order, and nothing left behind."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
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
from hypothesis import given, settings
from hypothesis import strategies as st
from options import MYDATASET, compose_job, options, refuses
from test_loaders import rows, whole
from test_placements import FLAT, NESTED, assert_same, mover

from fastloop.ahead.lane import Lane
from fastloop.ahead.leaves import mapped
from fastloop.ahead.packed import packed
from fastloop.ahead.pinned import Buffer, through_pinned
from fastloop.ahead.process import by_process
from fastloop.ahead.stream import by_stream
from fastloop.ahead.thread import by_thread
from fastloop.delivery import opening
from fastloop.job import check_support
from fastloop.launchers.single import Single
from fastloop.loaders.device_resident import cgroup_bytes, check_fits, free_bytes
from fastloop.plans import epoch_indices
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_trial
from fastloop.types import BadData, Invalid, JobFailed, Unsupported

CPU = torch.device("cpu")
FIRST_METHOD = multiprocessing.get_all_start_methods()[0]
WAYS = {"thread": by_thread, "process": partial(by_process, start_method=FIRST_METHOD)}
BY = {name: (f"device_prefetch_by={name}", "device_prefetch=2") for name in WAYS}
SEVERAL = ("raw", "np_memmap", "index_loop", "numpy_loop", "tensorclass", "device_resident")
"""Loaders that keep their samples in different ways."""
TRAVERSED = ("placement=recursive", "loader=raw", "benchmark=traversal")
TRIAL = ("dataset=mydataset", "dataset.count=300", "epochs=1", "loader=np_memmap")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
# Python 3.12 warns of every fork in a process with threads, which torch's own loader does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def itself(batch):
    return batch


def numbered(epoch: int, count: int):
    """Batches that each tell which one they are, with a buffer of their own."""
    for number in range(count):
        yield {"x": torch.full((3, 2), float(number)), "epoch": epoch, "name": ["a", None]}


@contextmanager
def opened(way: str, epochs, deliver=itself, ahead: int = 2):
    """Epochs from a function from the number of one to its batches."""

    @contextmanager
    def open_():
        yield epochs

    with WAYS[way](open_, deliver, ahead, CPU) as moved:
        yield moved


def left_behind() -> tuple[int, ...]:
    gc.collect()
    here = psutil.Process()
    return len(here.children(recursive=True)), threading.active_count(), here.num_fds()


@pytest.mark.parametrize("loader", options("loader"))
def test_every_sample_comes_once_an_epoch_in_the_order(prepared_job, loader):
    job, prepared = prepared_job(f"loader={loader}", *MYDATASET, *BY["thread"], "batch_size=16")
    assert not refuses(job, prepared, ())
    wanted, plan = rows([whole(job.dataset)]), job.plan(seed=7)
    before = threading.active_count()
    with opening(job, prepared, plan, CPU)() as epochs:
        for epoch in (0, 1, 0):
            order = epoch_indices(plan.order, len(wanted), 7, epoch).tolist()
            assert rows(epochs(epoch)) == [wanted[index] for index in order]
        for _ in epochs(1):
            break
    assert os_threads.fell_to(before, threading.active_count)  # grain does not wait for its own


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("loader", SEVERAL)
def test_a_batch_from_another_process_belongs_to_whoever_holds_it(prepared_job, loader, order):
    given = (f"loader={loader}", f"order={order}", "batch_size=16")
    job, prepared = prepared_job(*given, *MYDATASET, *BY["process"])
    wanted, plan = rows([whole(job.dataset)]), job.plan(seed=7)
    indices = epoch_indices(plan.order, len(wanted), 7, 0).tolist()
    with opening(job, prepared, plan, CPU)() as epochs:
        for _ in range(2):
            held = list(epochs(0))
            assert rows(held) == [wanted[index] for index in indices]
            for leaf in optree.tree_leaves(held):
                leaf.zero_()


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_with_workers_that_are_kept_keeps_them(prepared_job, way):
    workers = ("num_workers=2", "persistent_workers=true", "loader=np_memmap")
    job, prepared = prepared_job(*workers, *MYDATASET, *BY[way], "batch_size=16")
    wanted, plan = sorted(rows([whole(job.dataset)])), job.plan(0)
    before, seen = left_behind()[:2], []
    with opening(job, prepared, plan, CPU)() as epochs:
        for epoch in range(3):
            assert sorted(rows(epochs(epoch))) == wanted
            seen.append({one.pid for one in psutil.Process().children(recursive=True)})
    assert len(seen[0]) >= 2
    assert seen[0] == seen[1] == seen[2]
    assert left_behind()[:2] == before


@pytest.mark.parametrize("way", WAYS)
def test_no_batch_is_lost_repeated_or_stale_however_it_is_consumed(way):
    with opened(way, lambda epoch: numbered(epoch % 1000, epoch // 1000), ahead=3) as epochs:

        @settings(max_examples=60, deadline=None)
        @given(st.integers(0, 12), st.integers(0, 12), st.sets(st.integers(0, 12)))
        def slowly(count, until, slow_at):
            held = []
            for number, batch in enumerate(epochs(1000 * count + 7)):
                held.append(batch)
                if number in slow_at:
                    time.sleep(0.002)
                if number == until:
                    break
            assert [float(batch["x"].sum()) for batch in held] == [
                6.0 * number for number in range(min(count, until + 1))
            ]
            assert all(one["epoch"] == 7 and one["name"] == ["a", None] for one in held)
            assert all(list(one) == ["x", "epoch", "name"] for one in held)

        slowly()


@pytest.mark.parametrize("ahead", [1, 4])
def test_so_many_batches_are_loaded_ahead_and_no_more(ahead):
    loaded = []

    def epochs(epoch):
        for batch in numbered(epoch, 20):
            loaded.append(batch)
            yield batch

    with opened("thread", epochs, ahead=ahead) as moved:
        for number, _ in enumerate(moved(0), start=1):
            while len(loaded) < min(20, number + ahead):
                time.sleep(0.0005)
            assert len(loaded) == min(20, number + ahead)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_runs_before_the_epoch_is_asked_for(way):
    before = left_behind()
    with opened(way, partial(numbered, count=3)) as epochs:
        asked = epochs(0)
        assert left_behind() == before
        assert len(list(asked)) == 3
    assert left_behind() == before


def consume(way: str, epochs, step, deliver=itself) -> None:
    """One epoch."""
    with opened(way, epochs, deliver) as moved:
        for batch in moved(0):
            step(batch)


def failing(epoch: int):
    yield from numbered(epoch, 2)
    raise BadData("sample 7 is broken")


@pytest.mark.parametrize("way", WAYS)
def test_what_fails_in_the_loader_is_raised_in_the_loop_with_its_traceback(way):
    before, got = left_behind()[:2], []
    with pytest.raises(BadData, match=r"^sample 7 is broken") as raised:
        consume(way, failing, got.append)
    assert len(got) == 2
    assert "in failing" in "".join(traceback.format_exception(raised.value))
    del raised
    assert left_behind()[:2] == before


class PeculiarError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_error_that_can_not_travel_is_told():
    def epochs(epoch):
        raise PeculiarError(1, 2)
        yield

    with pytest.raises(RuntimeError, match=r"^PeculiarError: 1 and 2"):
        consume("process", epochs, itself)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["placement", "step"])
def test_what_fails_behind_the_loader_leaves_nothing(way, where):
    def refuse(batch):
        if float(batch["x"][0, 0]) == 3:
            raise ValueError("no room for it")
        return batch

    before = left_behind()[:2]
    place, step = (refuse, itself) if where == "placement" else (itself, refuse)
    with pytest.raises(ValueError, match="no room for it"):
        consume(way, partial(numbered, count=9), step, place)
    assert left_behind()[:2] == before


@pytest.mark.parametrize("way", WAYS)
def test_thousands_of_short_epochs_leave_no_thread_no_descriptor_and_no_process(way):
    with opened(way, partial(numbered, count=3)) as epochs:
        list(epochs(0))
        before = left_behind()
        for epoch in range(2000):
            batches = epochs(epoch)
            assert next(batches)["epoch"] == epoch
            assert len(list(batches) if epoch % 3 else []) in (0, 2)
            del batches
        assert left_behind() == before


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_that_somebody_still_holds_ends_with_its_loader(way):
    before = left_behind()[:2]
    with opened(way, partial(numbered, count=9)) as epochs:
        held = iter(epochs(0))
        next(held)
    assert left_behind()[:2] == before
    assert list(held) == []


def test_a_process_loads_one_epoch_at_a_time():
    with opened("process", partial(numbered, count=9)) as epochs:
        held = epochs(0)
        next(held)
        with pytest.raises(RuntimeError, match="one epoch at a time"):
            next(epochs(1))
        assert len(list(held)) == 8
        assert len(list(epochs(1))) == 9


def test_a_process_that_is_killed_says_so():
    def kill(batch):
        for child in psutil.Process().children():
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in str(
                child.cmdline()
            ):
                child.kill()

    with pytest.raises(ChildProcessError, match="loads ahead has ended, killed by SIGKILL"):
        consume("process", partial(numbered, count=1000), kill)


@pytest.mark.parametrize("by", BY.values(), ids=BY.keys())
@pytest.mark.parametrize(
    "more",
    [
        ("dataset=digits", "loader=raw", "collate=fast"),
        ("dataset=digits", "loader=raw", "transform=augment", "num_workers=1"),
        ("dataset=digits", "loader=np_memmap", "transform=normalize", "transform.where=device"),
        ("dataset=mydataset", "dataset.count=300", "cache=cold", "loader=np_memmap"),
        (*("dataset=texts", "dataset.count=100", "collate=pad"), *TRAVERSED),
    ],
    ids=lambda more: more[2],
)
def test_a_trial_runs_on_what_comes_ahead_and_its_data_is_checked(prepared_job, by, more):
    job, prepared = prepared_job(*more, *by, "epochs=1")
    trial = run_trial(job, prepared, 0, now_ns())
    assert all(one.seconds > 0 for one in trial.benchmarks.values())
    if "training" in trial.benchmarks:
        plain = dataclasses.replace(job, device_prefetch=0, device_prefetch_by=None)
        losses = run_trial(plain, prepared, 0, now_ns()).benchmarks["training"].losses
        if "transform=augment" not in more:
            assert trial.benchmarks["training"].losses == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("by", BY.values(), ids=BY.keys())
def test_the_wait_is_for_what_comes_ahead_and_nothing_is_left_to_place(prepared_job, by):
    job, prepared = prepared_job(*TRIAL, *by)
    seen = run_instrumented(job, prepared, "training")
    assert len(seen.wait_s) == len(seen.place_s) == 5
    assert seen.first_batch_s > 0


class Reusing:
    """A placement that hands out the same two buffers in turn."""

    def to(self, device):
        buffers: list = [None, None]

        def place(batch):
            buffers.reverse()
            if buffers[0] is None or len(buffers[0]) != len(batch[0]):
                buffers[0] = torch.empty_like(batch[0])
            return buffers[0].copy_(batch[0]), batch[1]

        return place


@pytest.mark.parametrize("by", BY.values(), ids=BY.keys())
def test_the_gate_sees_what_comes_ahead(prepared_job, by):
    job, prepared = prepared_job(*TRIAL, *by, "batch_size=20")
    reusing = dataclasses.replace(job, placement=Reusing())
    with pytest.raises(Invalid, match="not the dataset's"):
        run_trial(reusing, prepared, 0, now_ns())


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (("device_prefetch_by=thread",), "device_prefetch_by=thread needs batches ahead: "),
        (("device_prefetch=2", "device_prefetch_by=stream"), "device_prefetch_by=stream: needs C"),
        (("pinned_buffers=4",), "pinned_buffers=4: needs CUDA, device is cpu"),
    ],
)
def test_what_can_not_run_on_a_cpu_says_so(given_, said):
    with pytest.raises(Unsupported) as why:
        check_support(compose_job("device=cpu", *given_))
    assert str(why.value).startswith(said)


def test_a_loader_without_a_setting_says_so_from_the_other_process_too(prepared_job):
    refused = ("loader=index_loop", "num_workers=2", "dataset=mydataset", "dataset.count=300")
    job, prepared = prepared_job(*refused, *BY["process"])
    with pytest.raises(JobFailed, match=r"^unsupported: num_workers=2: loader=index_loop"):
        Single(isolation="forkserver").call(run_trial, job, prepared, 0, now_ns())


TREES = FLAT | NESTED


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_a_packed_batch_is_the_batch(tree):
    made = packed(tree)
    assert_same(tree, made.unpacked(), CPU)
    if not has_collections(tree):
        assert len(made.memory) <= sum(leaf.nbytes + 63 for leaf in optree.tree_leaves(tree))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_a_buffer_gives_the_same_tree_in_its_own_memory(tree):
    buffer = Buffer(partial(torch.empty, dtype=torch.uint8))
    first = buffer.filled(tree)
    assert_same(tree, first, CPU)
    pointers = [leaf.data_ptr() for leaf in tensors(first)]
    assert not {leaf.data_ptr() for leaf in tensors(tree)} & set(pointers)
    if not has_collections(tree):  # of which a batch size is kept
        smaller = mapped(lambda leaf: leaf[:2], tree)
        again = buffer.filled(smaller)
        assert_same(smaller, again, CPU)
        assert [leaf.data_ptr() for leaf in tensors(again)] == pointers


def has_collections(tree) -> bool:
    return any(not isinstance(leaf, torch.Tensor) for leaf in optree.tree_leaves(tree))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_a_tensor_without_strides_comes_from_the_other_process_too():
    def epochs(epoch):
        yield (torch.eye(3).to_sparse(), torch.ones(2))

    with opened("process", epochs) as loaded:
        ((sparse, dense),) = loaded(0)
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert torch.equal(dense, torch.ones(2))


def tensors(tree) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mapped(lambda leaf: (found.append(leaf), leaf)[1], tree)
    return found


@dataclasses.dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    name: str


def test_every_tensor_of_a_dataclass_is_found():
    made = mapped(lambda leaf: leaf + 1, [Pair(torch.zeros(2), "a"), 3])
    assert (made[0].x.tolist(), made[0].name, made[1]) == ([1.0, 1.0], "a", 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=12))
def test_a_buffer_holds_batches_of_any_size_after_each_other(sizes):
    buffer = Buffer(partial(torch.empty, dtype=torch.uint8))
    for number, (count, width) in enumerate(sizes):
        batch = (torch.full((count, width), number, dtype=torch.int16), torch.rand(count))
        assert_same(batch, buffer.filled(batch), CPU)


def test_resident_samples_that_do_not_fit_are_refused_with_the_sizes():
    with pytest.raises(Unsupported, match=r"3,000 MiB of samples, 2,000 MiB are free on device c"):
        check_fits(3000 << 20, 2000 << 20, CPU)
    check_fits(2000 << 20, 2000 << 20, CPU)
    assert free_bytes(CPU) > 1 << 20


def test_a_containers_limit_is_what_is_free(tmp_path):
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 400\nactive_file 200\ninactive_file 100\n")
    assert cgroup_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert cgroup_bytes(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_bytes(tmp_path) is None


# On a GPU. That the first three can fail is a test of its own, below them.

MANY = 24
LONG = 20_000_000
"""Clock cycles, about 10 ms: far longer than any copy here takes."""


@cache
def host_batches(pinned: bool) -> list[torch.Tensor]:
    """Made beforehand: locking memory may wait for the device, and then nothing could race."""
    return [
        torch.full((1 << 20,), number, dtype=torch.int32, pin_memory=pinned)
        for number in range(MANY)
    ]


@contextmanager
def open_host_batches():
    yield lambda epoch: iter(host_batches(pinned=True))


ON_CUDA = {"stream": by_stream, "thread": by_thread, "process": WAYS["process"]}


def delayed(batch):
    """A copy that comes late, into memory that held something else."""
    torch.cuda._sleep(LONG)
    return batch.to("cuda", non_blocking=True)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("way", ["stream", "thread"])
def test_a_step_never_reads_a_batch_whose_copy_has_not_ended(way):
    device, sums = torch.device("cuda", 0), []
    with ON_CUDA[way](open_host_batches, delayed, 2, device) as epochs:
        for batch in epochs(0):
            sums.append(batch.sum())
    assert [int(one) for one in sums] == [number << 20 for number in range(MANY)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("way", ["stream", "thread"])
def test_no_copy_overwrites_what_a_step_is_still_reading(way):
    device, sums = torch.device("cuda", 0), []
    move = partial(torch.Tensor.to, device="cuda", non_blocking=True)
    with ON_CUDA[way](open_host_batches, move, 2, device) as epochs:
        for batch in epochs(0):
            torch.cuda._sleep(LONG)
            sums.append(batch.sum())
            del batch
    assert [int(one) for one in sums] == [number << 20 for number in range(MANY)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("way", ["stream", "thread"])
def test_nobody_is_given_the_memory_of_indices_that_are_still_to_be_read(prepared_job, way):
    device, held, taken = torch.device("cuda", 0), [], []
    given_ = ("loader=device_resident", "batch_size=50", "device=cuda", "order=random")
    job, prepared = prepared_job(*given_, "dataset=mydataset", "dataset.count=300")
    plan = job.plan(seed=7)

    def late(batches):
        for batch in batches:
            yield batch
            torch.cuda._sleep(LONG)  # before the next is gathered

    @contextmanager
    def open_():
        with job.loader.open(prepared, plan) as epochs:
            yield lambda epoch: late(epochs(epoch))

    with ON_CUDA[way](open_, itself, 4, device) as epochs:
        for batch in epochs(0):
            held.append([leaf.clone() for leaf in batch])
            taken += [torch.zeros(300, dtype=torch.int64, device=device) for _ in range(32)]
    samples, indices = rows([whole(job.dataset)]), epoch_indices(plan.order, 300, 7, 0).tolist()
    got = rows([[leaf.cpu() for leaf in batch] for batch in held])
    assert got == [samples[index] for index in indices]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("missing", ["event", "record_stream", "the lane's own memory"])
def test_without_one_of_the_three_these_tests_would_fail(prepared_job, monkeypatch, missing):
    if missing == "event":
        monkeypatch.setattr(Lane, "received", lambda lane, placed, event: placed)
        test = test_a_step_never_reads_a_batch_whose_copy_has_not_ended
    elif missing == "record_stream":
        monkeypatch.setattr(Lane, "received", waited_for_only)
        test = test_no_copy_overwrites_what_a_step_is_still_reading
    else:
        monkeypatch.setattr(Lane, "begun", lambda lane, epochs, epoch: iter(epochs(epoch)))
        test = partial(
            test_nobody_is_given_the_memory_of_indices_that_are_still_to_be_read, prepared_job
        )
    with pytest.raises(AssertionError):
        test(way="stream")


def waited_for_only(lane, placed, event):
    torch.cuda.current_stream().wait_event(event)
    return placed


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("buffers", [1, 2, 5])
def test_a_pinned_buffer_is_not_written_to_before_its_copy_has_ended(buffers):
    device = torch.device("cuda", 0)
    place = through_pinned(delayed, buffers, device)
    held = [place(batch) for batch in host_batches(pinned=False)]
    assert [int(one.sum()) for one in held] == [number << 20 for number in range(MANY)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("non_blocking", ["true", "false"])
@pytest.mark.parametrize("buffers", [1, 2, 5])
@pytest.mark.parametrize("placement", [one for one in options("placement") if one != "direct"])
def test_a_pinned_buffer_waits_for_whatever_placement_copies_out_of_it(
    placement, buffers, non_blocking
):
    device = torch.device("cuda", 0)
    place = through_pinned(mover(placement, device, non_blocking), buffers, device)
    sums = []
    for number in range(MANY):
        batch = {"x": torch.full((1 << 24,), number, dtype=torch.int32)}
        torch.cuda._sleep(LONG)
        sums.append(place(batch)["x"].sum())
    assert [int(one) for one in sums] == [number << 24 for number in range(MANY)]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("pinned", [(), ("pin_memory=true",), ("pinned_buffers=3",)])
@pytest.mark.parametrize("non_blocking", ["true", "false"])
@pytest.mark.parametrize("way", [None, *ON_CUDA])
def test_a_trial_on_cuda_delivers_the_datasets_samples(prepared_job, way, non_blocking, pinned):
    ahead = (f"device_prefetch_by={way}", "device_prefetch=2") if way else ()
    more = ("device=cuda", f"placement.non_blocking={non_blocking}", *pinned, *ahead)
    job, prepared = prepared_job(*TRIAL, *more)
    if way == "process" and pinned == ("pin_memory=true",):
        with pytest.raises(Unsupported, match="shared memory"):
            check_support(job)
        return
    run_trial(job, prepared, 0, now_ns())


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("way", ["stream", "thread"])
@pytest.mark.parametrize("more", [("loader=device_resident",), ("loader=raw", "collate=fast")])
def test_work_of_loader_and_collate_on_the_device_is_in_order(prepared_job, way, more):
    ahead = (f"device_prefetch_by={way}", "device_prefetch=2", "pinned_buffers=2", "epochs=1")
    job, prepared = prepared_job("dataset=digits", "device=cuda", *more, *ahead)
    benchmarks = run_trial(job, prepared, 0, now_ns()).benchmarks  # or it raises: other samples
    assert {one.samples for one in benchmarks.values()} == {1797}
