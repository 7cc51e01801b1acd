"""Streams of the native core: memory, threads, early ends, forks and the interpreter's exit."""

from __future__ import annotations

import gc
import io
import os
import pickle
import subprocess
import sys
import threading
from itertools import islice

import numpy as np
import os_threads
import psutil
import pytest
import torch
from native_core import needs_core

from fastloop.core.spans import now_ns
from fastloop.fastloader.batch_memory import open_pool
from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.native_order import SeededOrder
from fastloop.fastloader.native_stream import MemoryPools, StreamPlan, WorkTimes, open_columns
from fastloop.fastloader.native_stream import open_stream as open_native

pytestmark = needs_core
COUNT = 20_000
ROWS = torch.arange(COUNT * 10).reshape(COUNT, 10)
PIECE = np.arange(1000)


def open_stream(order=None, pool=None, batch_size: int = 64, times=None, **settings):
    columns = open_columns([array_column(ROWS), array_column(ROWS[:, 0])])
    assert columns is not None
    order = SeededOrder(COUNT, 0) if order is None else order
    plan = StreamPlan(columns=columns, batch_size=batch_size, **settings)
    return open_native(plan, order, MemoryPools(pool or open_pool()), times=times)


def is_intact(batch) -> bool:
    rows, firsts = batch
    return torch.equal(rows, firsts[:, None] + torch.arange(10))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_held_batches_stay_right_over_later_epochs(num_threads):
    pool, held = open_pool(), []
    for _ in range(5):
        held += islice(open_stream(pool=pool, num_threads=num_threads), 40)
        epoch = list(open_stream(pool=pool, num_threads=num_threads))
        assert sorted(torch.cat([firsts for _, firsts in epoch]).tolist()) == ROWS[:, 0].tolist()
        held += epoch[::9]
    assert all(map(is_intact, held))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_every_batch_has_recorded_pieces_in_the_time_of_its_epoch(num_threads):
    times, start_ns = WorkTimes(), now_ns()
    batches = sum(1 for _ in open_stream(num_threads=num_threads, times=times))
    threads, numbers, begun_ns, ended_ns = times.read().T
    assert len(times.epochs) == 1
    assert set(threads.tolist()) <= set(range(num_threads + 1))
    assert numbers.min() == 0
    assert numbers.max() < batches
    assert start_ns <= begun_ns.min()
    assert (begun_ns <= ended_ns).all()
    assert ended_ns.max() <= now_ns()


def test_batches_may_be_written_to():
    for rows, firsts in open_stream(num_threads=2):
        assert is_intact((rows, firsts))
        rows.zero_()
        firsts.fill_(-1)
    assert is_intact((ROWS, ROWS[:, 0]))


def test_memory_is_used_again_once_no_view_is_left():
    pool = open_pool()
    batches = [rows for rows, _ in open_stream(pool=pool, num_threads=0)]
    places = {rows.data_ptr() for rows in batches}
    views = [rows[3:, :2] for rows in batches]
    del batches
    assert places.isdisjoint(rows.data_ptr() for rows, _ in open_stream(pool=pool, num_threads=0))
    del views
    again = [rows.data_ptr() for rows, _ in open_stream(pool=pool, num_threads=0)]
    assert not places.isdisjoint(again)


def test_batches_outlive_their_pool_and_stream():
    pool = open_pool()
    batches = list(open_stream(pool=pool))
    del pool
    gc.collect()
    assert all(map(is_intact, batches))


def test_small_batch_is_saved_with_its_own_bytes_alone():
    stream = open_stream(batch_size=3)
    rows, _ = list(stream)[1000]
    saved, content = io.BytesIO(), 3 * 10 * 8
    torch.save(rows, saved)
    assert rows.untyped_storage().nbytes() == content
    assert len(saved.getvalue()) < content + 4096
    assert len(pickle.dumps(rows)) < content + 4096


def test_batches_are_separate_to_autograd():
    weight = torch.ones(10, requires_grad=True)
    losses = []
    for rows, _ in islice(open_stream(), 5):
        floats = rows.float()
        losses.append((floats * weight).sum())
        rows.zero_()
    sum(losses).backward()
    assert weight.grad is not None
    (first, _), (second, _) = islice(open_stream(), 2)
    first.add_(1)
    assert second._version == 0


def test_batches_can_be_trained_on_if_made_in_inference_mode():
    with torch.inference_mode():
        rows, _ = next(open_stream())
    assert not rows.is_inference()


@pytest.mark.parametrize("taken", [0, 1, 100])
def test_closing_early_ends_the_threads(taken):
    threads = os_threads.count_threads()
    for _ in range(20):
        stream = open_stream(num_threads=3)
        held = list(islice(stream, taken))
        stream.close()
        assert os_threads.falls_to(threads)
        assert list(stream) == []
        assert all(map(is_intact, held))


def test_stream_that_nobody_refers_to_ends_its_threads():
    threads = os_threads.count_threads()
    gc.disable()
    try:
        for order in (None, iter([(PIECE, None)] * 50)):
            next(open_stream(order, num_threads=3))
            assert os_threads.falls_to(threads)
    finally:
        gc.enable()


def test_error_of_the_pieces_is_raised_after_the_batches_before():
    def fail():
        yield PIECE, None
        yield PIECE[:7], None
        raise ZeroDivisionError("sampler")

    stream = open_stream(fail(), batch_size=100)
    for start in range(0, 1000, 100):
        assert torch.equal(next(stream)[0], ROWS[start : start + 100])
    assert torch.equal(next(stream)[0], ROWS[:7])
    with pytest.raises(ZeroDivisionError, match="sampler"):
        next(stream)
    assert next(stream, None) is None


def test_endless_pieces_are_read_as_the_epoch_goes_on():
    read = []

    def pieces():
        while True:
            read.append(len(PIECE))
            yield PIECE, None

    stream = open_stream(pieces(), num_threads=2)
    for batch in islice(stream, 1000):
        assert is_intact(batch)
    row_nbytes = ROWS.nbytes // COUNT + 8
    assert sum(read) * row_nbytes < 1000 * 64 * row_nbytes + (12 << 20)
    stream.close()


def test_several_threads_may_share_a_stream():
    stream, seen, lock = open_stream(num_threads=2), [], threading.Lock()

    def consume():
        while True:
            try:
                batch = next(stream, None)
            except ValueError:  # another thread is waiting
                continue
            if batch is None:
                return
            assert is_intact(batch)
            with lock:
                seen.extend(batch[1].tolist())

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    assert sorted(seen) == ROWS[:, 0].tolist()


def test_stream_is_closed_while_another_thread_waits_in_it():
    for _ in range(20):
        stream = open_stream(num_threads=2)
        consumer = threading.Thread(target=lambda stream=stream: [is_intact(b) for b in stream])
        consumer.start()
        stream.close()
        consumer.join()
        assert next(stream, None) is None


def test_threads_wait_for_the_next_epoch_for_a_while():
    threads, pool = os_threads.count_threads(), open_pool()
    for _ in range(2):
        for _ in range(3):
            assert all(map(is_intact, open_stream(pool=pool, num_threads=3)))
            assert os_threads.count_threads() <= threads + 3
        assert os_threads.falls_to(threads)  # and begin anew
    assert all(map(is_intact, open_stream(pool=pool, num_threads=3)))
    gc.disable()
    try:
        del pool
        assert os_threads.falls_to(threads)
    finally:
        gc.enable()


def test_epochs_at_the_same_time_have_threads_of_their_own():
    threads, pool = os_threads.count_threads(), open_pool()
    for num_threads in (2, 1):
        streams = [open_stream(pool=pool, num_threads=num_threads) for _ in range(3)]
        for batches in zip(*streams, strict=True):
            assert all(map(is_intact, batches))
        assert all(list(stream) == [] for stream in streams)
    assert os_threads.falls_to(threads)


def run_in_fork(check) -> int:
    """The exit status of a fork that has called `check`."""
    pid = os.fork()
    if not pid:
        try:
            check()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("taken", [0, 3])
def test_a_fork_that_goes_on_iterating_gets_an_error(taken):
    pool = open_pool()
    stream = open_stream(pool=pool, num_threads=2)
    held = list(islice(stream, taken))

    def check():
        with pytest.raises(RuntimeError, match="begun this epoch of FastLoader"):
            next(stream)
        stream.close()
        assert all(map(is_intact, held))
        held.clear()
        epoch = list(open_stream(pool=pool, num_threads=2))
        assert len(epoch) == -(-COUNT // 64)
        assert all(map(is_intact, epoch))

    for _ in range(5):
        assert run_in_fork(check) == 0
    rest = [*held, *stream]
    assert sorted(torch.cat([firsts for _, firsts in rest]).tolist()) == ROWS[:, 0].tolist()


OPEN_AT_EXIT = """
import sys
import torch
from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.native_stream import *
from fastloop.fastloader.native_order import SeededOrder
rows = torch.rand(200_000, 100)
columns, order = open_columns([array_column(rows)]), SeededOrder(200_000, 0)
plan = StreamPlan(columns=columns, batch_size=8, num_threads=3)
stream = open_stream(plan, order, MemoryPools())
batch = next(stream)
sys.held = stream, batch, iter([stream])  # outlives the modules
print(len(batch[0]))
"""


@pytest.mark.heavy
def test_interpreter_exits_with_an_open_stream():
    command = [sys.executable, "-c", OPEN_AT_EXIT]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "8\n", "")


@pytest.mark.soak
def test_thousands_of_tiny_epochs_take_no_more_memory():
    process, pools, first = psutil.Process(), MemoryPools(), 0
    columns = open_columns([array_column(ROWS[:50])])
    for epoch in range(100_000):
        threads = 1 if epoch % 100 == 0 else 0
        plan = StreamPlan(columns=columns, batch_size=8, num_threads=threads)
        stream = open_native(plan, SeededOrder(50, epoch), pools)
        for _ in islice(stream, epoch % 9):
            pass
        if epoch == 5000:
            first = process.memory_info().rss
    assert process.memory_info().rss - first < 2 << 20
