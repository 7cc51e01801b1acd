"""Datasets that processes read: the batches of threads, in memory that stays a batch's own."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import os_threads
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parents_garbage import make_garbage
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import tv_tensors
from torchvision.transforms import v2
from usual_sources import (
    Fetched,
    Listed,
    Samples,
    mapping,
    named,
    optional,
    pair,
    texts,
    without_none,
)
from worker_datasets import (
    Ending,
    Failing,
    LocalError,
    Pids,
    Rows,
    Worker,
    fail_to_begin,
    refuse_files,
)

from fastloop import FastLoader


def draw_everything(index: int):
    drawn = (
        random.random(),
        np.random.rand(),
        torch.rand(2),
        torch.dropout(torch.ones(3), 0.5, True),
    )
    return index, *drawn


SOURCES = {
    "tuples": Samples(pair, 23),
    "dicts": Samples(mapping, 23),
    "named tuples": Samples(named, 23),
    "texts": Samples(texts, 23),
    "numbers": Samples(float, 23),
    "getitems": Fetched(pair, 23),
    "a Subset": Subset(Samples(pair, 30), range(3, 26)),
    "random": Samples(draw_everything, 23),
}


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def num_children() -> int:
    return len([child for child in psutil.Process().children() if child.status() != "zombie"])


def values(loader) -> list:
    return [repr(batch) for batch in loader]


SHUFFLED = {"batch_size": 4, "shuffle": True}
LOOPS = [
    *((name, 2, SHUFFLED) for name in SOURCES),
    *(("tuples", n, SHUFFLED) for n in (1, 3)),
    *(
        (name, 2, given_settings)
        for name in ("tuples", "texts", "getitems")
        for given_settings in ({"batch_size": None}, {"batch_size": 5, "drop_last": True})
    ),
]


@pytest.mark.parametrize(("source", "num_workers", "given_settings"), LOOPS, ids=str)
def test_any_number_of_processes_delivers_the_epochs_of_the_loop_itself(
    source, num_workers, given_settings
):
    source = SOURCES[source]
    expected = FastLoader(source, num_threads=0, seed=3, **given_settings)
    processes = FastLoader(source, num_workers=num_workers, seed=3, **given_settings)
    before = random.getstate(), torch.get_rng_state().tolist(), children()
    for _ in range(2):
        epoch = values(expected)
        assert values(processes) == epoch
    assert (random.getstate(), torch.get_rng_state().tolist(), children()) == before


@given(
    count=st.integers(0, 30),
    batch_size=st.integers(1, 12),
    num_workers=st.integers(1, 3),
    prefetch_factor=st.one_of(st.none(), st.integers(1, 3)),
    drop_last=st.booleans(),
    varies=st.booleans(),
)
@settings(max_examples=10)
def test_epochs_of_any_size(count, batch_size, num_workers, prefetch_factor, drop_last, varies):
    source = Rows(count, 5, varies)
    common = {"collate_fn": list, "drop_last": drop_last, "shuffle": True, "seed": count}
    processes = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
    ours = FastLoader(source, batch_size, **common, **processes)
    assert values(ours) == values(FastLoader(source, batch_size, num_threads=0, **common))
    assert len(ours) == len(DataLoader(source, batch_size, drop_last=drop_last))


def add_one(batch):
    return batch[0] + 1, batch[1] + torch.rand(1)


def draw_numpy(batch):
    return batch[0] + np.random.rand(), batch[1]


@pytest.mark.filterwarnings("ignore:samples use the global random generators")
@pytest.mark.parametrize("transform", [add_one, draw_numpy], ids=["torch", "numpy"])
def test_transforms_are_applied_to_what_processes_make(transform):
    epochs = []
    for how in ({"num_workers": 2}, {"num_threads": 0}):
        loader = FastLoader(Samples(pair, 23), 4, transform=transform, seed=0, **how)
        epochs.append([values(loader) for _ in range(2)])
    assert epochs[0] == epochs[1]
    images = Samples(partial(torch.full, (3, 4, 4)), 8)
    loader = FastLoader(images, 4, transform=v2.Resize(2), num_workers=2)
    assert [tuple(batch.shape) for batch in loader] == [(4, 3, 2, 2)] * 2


def collate_half(samples: list):
    images, labels = default_collate(samples)
    return {"images": images.half(), "labels": labels.numpy(), "first": samples[0]}


@pytest.mark.parametrize(
    "collate_fn", [list, len, collate_half, without_none], ids=lambda each: each.__name__
)
def test_whatever_a_collate_fn_returns_arrives(collate_fn):
    source = Samples(optional, 23) if collate_fn is without_none else Samples(pair, 23)
    loaders = [FastLoader(source, 4, collate_fn=collate_fn, **how) for how in HOW]
    assert values(loaders[0]) == values(loaders[1])


HOW = {"num_workers": 2}, {"num_threads": 0}


def test_lists_of_indices_and_samplers():
    for given_settings in (
        lambda: {"sampler": BatchSampler(RandomSampler(range(10)), 3, False), "batch_size": None},
        lambda: {"batch_sampler": [[1, 2], [3], [], [4, 5, 6]], "collate_fn": list},
    ):
        epochs = []
        for how in HOW:
            torch.manual_seed(3)
            source = Listed(None) if "sampler" in given_settings() else Samples(float)
            epochs.append(values(FastLoader(source, **given_settings(), **how)))
        assert epochs[0] == epochs[1]


@pytest.mark.heavy
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_start_methods(context):
    loader = FastLoader(Pids(), 4, num_workers=1, multiprocessing_context=context)
    pids = {int(pid) for _, batch, _ in loader for pid in batch}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_what_cannot_be_pickled_is_refused_where_it_would_have_to_be():
    loader = FastLoader(
        Samples(lambda index: index), num_workers=1, multiprocessing_context="spawn"
    )
    with pytest.raises(
        ValueError, match=r"get Samples, collate_fn .* pickled by 'spawn', and that"
    ):
        iter(loader)
    with pytest.raises(ValueError, match="context"):
        FastLoader(Pids(), num_workers=1, multiprocessing_context="thread")


def test_processes_know_their_number_and_begin_with_worker_init_fn():
    seen = torch.zeros(3).share_memory_()
    loader = FastLoader(
        Worker(), 2, num_workers=3, worker_init_fn=lambda number: seen[number].fill_(number + 1)
    )
    ids, counts, seeds = zip(*loader, strict=True)
    assert [batch.tolist() for batch in ids] == [[n % 3] * 2 for n in range(6)]
    assert {int(count) for batch in counts for count in batch} == {3}
    assert len({int(seed) for batch in seeds for seed in batch}) == 3
    assert seen.tolist() == [1, 2, 3]


def test_processes_end_with_the_epoch_unless_they_persist():
    before, epochs = children(), []
    for persistent in (False, True):
        loader = FastLoader(Pids(), 4, num_workers=2, persistent_workers=persistent)
        for _ in range(2):
            epochs.append({int(pid) for _, pids, _ in loader for pid in pids})
            assert (children() > before) == persistent
    assert not epochs[0] & epochs[1]
    assert epochs[2] == epochs[3]
    copied = pickle.loads(pickle.dumps(loader))
    assert {int(pid) for _, pids, _ in copied for pid in pids}.isdisjoint(epochs[3])
    del loader, copied
    assert children() == before


def test_a_dataset_is_read_as_it_is_when_the_epoch_begins():
    source = Samples(float, 6)
    loader = FastLoader(source, 3, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    source.make = abs
    assert [batch.dtype for batch in loader] == [torch.int64] * 2


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_left_ends_its_processes(persistent):
    before = children()
    loader = FastLoader(Pids(), 2, num_workers=2, persistent_workers=persistent)
    for _ in loader:
        break
    del _
    iter(loader)  # never asked for anything
    assert children() == before
    assert len(list(zip(loader, loader, strict=True))) == 20  # two epochs at once
    del loader
    assert children() == before


@pytest.mark.parametrize("varies", [False, True])
def test_kept_batches_stay_as_they_are(varies):
    files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    loader = FastLoader(Rows(150, 64, varies), 1, num_workers=2, persistent_workers=True)
    for _ in range(2):
        kept = list(loader)
        for index, (row, label) in enumerate(kept):
            assert row.tolist() == [[index] * (64 * (1 + index) if varies else 64)]
            assert label.tolist() == [[index] * 3]
        if files:
            assert len(os.listdir("/proc/self/fd")) < files + 80


def test_memory_is_used_again_once_nothing_refers_to_a_batch():
    loader = FastLoader(Rows(200), 4, num_workers=2, persistent_workers=True)
    part = None
    for _ in range(2):
        pointers = set()
        for rows, labels in loader:
            pointers.add(rows.data_ptr())
            assert (rows == labels[:, :1]).all()
            part = rows[1:2, 3] if part is None else part
            rows.add_(1)
            labels.zero_()
        assert len(pointers) <= 2 * 6
    assert part.tolist() == [2]  # which a view of one of its rows keeps


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_keeps_the_batches_that_it_has():
    """Although its parent drops them."""
    running = iter(FastLoader(Rows(200), 4, num_workers=1))
    rows, labels = next(running)
    may_look, look = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(may_look, 1)
        os._exit(
            0 if (rows == labels[:, :1]).all() and labels[:, 0].tolist() == [0, 1, 2, 3] else 1
        )
    del rows, labels
    for rows, labels in running:
        assert (rows == labels[:, :1]).all()
    os.write(look, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(look), os.close(may_look)


def tv_image(index: int):
    return tv_tensors.Image(torch.full((3, 4, 4), index, dtype=torch.uint8)), index


def file_of(tensor: torch.Tensor) -> str:
    """The name of the mapped file that the tensor lies in, as Linux shows it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, _, rest = line.partition(" ")
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        if begin <= tensor.data_ptr() < end:
            return rest.split(maxsplit=4)[-1]
    return ""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no anonymous files")
@pytest.mark.parametrize("source", [Rows(40), Samples(tv_image, 40)], ids=["rows", "tv_tensors"])
def test_batches_are_in_no_folder(source):
    running = iter(FastLoader(source, 4, num_workers=2))
    kept = [next(running) for _ in range(5)]
    files = {file_of(leaf) for batch in kept for leaf in batch}
    assert files == {"/memfd:fastloop-batches (deleted)"}
    assert values(kept) + values(running) == values(FastLoader(source, 4, num_threads=0))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limits of resources")
def test_no_shared_memory_is_an_error():
    loader = FastLoader(Rows(9, 99_999), 3, num_workers=1, worker_init_fn=refuse_files)
    with pytest.raises(MemoryError, match=r"no shared memory of .* bytes.* smaller batch_size"):
        list(loader)


def add_batches(seen: list, loader: FastLoader) -> None:
    for batch in loader:  # a generator would keep the iterator in the traceback
        seen.append(batch.tolist())


@pytest.mark.parametrize("num_workers", [1, 3])
def test_error_of_a_sample_is_raised_at_its_batch_with_its_index(num_workers):
    before, seen = children(), []
    loader = FastLoader(Failing(17, ZeroDivisionError("of mine")), 4, num_workers=num_workers)
    with pytest.raises(ZeroDivisionError, match=r"at sample 17\.(?s:.*)in __getitem__.*") as caught:
        add_batches(seen, loader)
    assert "of mine" in str(caught.value)
    assert "FastLoader worker process" in str(caught.value)
    assert seen == [list(range(first, first + 4)) for first in range(0, 16, 4)]
    assert children() == before


def collate_badly(samples: list):
    return samples[0] / 0


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (lambda: FastLoader(Failing(3, LocalError(1, 2)), num_workers=1), RuntimeError, "1 and 2"),
        (lambda: FastLoader(Failing(3, KeyError("x")), num_workers=1), KeyError, "at sample 3"),
        (
            lambda: FastLoader(Pids(), 3, num_workers=1, collate_fn=collate_badly),
            TypeError,
            "at the batch of samples 0, 1, 2",
        ),
        (
            lambda: FastLoader(Pids(), num_workers=1, collate_fn=lambda batch: (_ for _ in batch)),
            TypeError,
            "cannot pickle 'generator' object",
        ),
        (
            lambda: FastLoader(Pids(), num_workers=2, worker_init_fn=fail_to_begin),
            LookupError,
            "in worker_init_fn.(?s:.*)worker 0",
        ),
        (lambda: FastLoader(Pids(), sampler=[1, 99], num_workers=1), IndexError, "index 99 is out"),
    ],
    ids=["two arguments", "KeyError", "collate_fn", "pickle", "worker_init_fn", "sampler"],
)
def test_errors_of_the_users_code_arrive(loader, error, message):
    before = children()
    with pytest.raises(error, match=message):
        list(loader())
    assert children() == before


def test_error_of_a_sampler_is_raised_after_the_batches_before():
    def draw():
        yield from range(10)
        raise LookupError("of the sampler")

    class Sampler:
        def __iter__(self):
            return draw()

    seen = []
    with pytest.raises(LookupError, match="of the sampler"):
        seen.extend(
            int(index) for index, _, _ in FastLoader(Pids(), sampler=Sampler(), num_workers=2)
        )
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize(
    ("way", "message"),
    [("kill", "has ended: killed by SIGKILL"), ("exit", "has ended: exit status 3")],
)
def test_a_process_that_ends_is_an_error_at_once(way, message):
    """Although the other one will never answer."""
    before, seen = children(), []
    loader = FastLoader(Ending(way), 4, num_workers=2, prefetch_factor=4)
    with pytest.raises(RuntimeError, match=rf"FastLoader worker process 0 \(pid \d+\) {message}"):
        seen.extend(batch.tolist() for batch in loader)
    assert children() == before


def test_a_process_that_is_killed_between_two_epochs_is_an_error():
    loader = FastLoader(Pids(), 4, num_workers=2, persistent_workers=True)
    pids = {int(pid) for _, batch, _ in loader for pid in batch}
    for pid in pids:
        psutil.Process(pid).kill()
    with pytest.raises(RuntimeError, match="has ended: killed by SIGKILL"):
        list(loader)
    assert len(list(loader)) == 10


class Collecting(Pids):
    """Collects garbage in each process."""

    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("forkserver", "spawn"))],
)
def test_processes_leave_garbage_to_their_parent(method):
    """Such as tensors on a GPU, which a fork can't free."""
    freed_in = make_garbage()
    batches = FastLoader(Collecting(), 4, num_workers=2, multiprocessing_context=method)
    assert len(list(batches)) == 10
    gc.collect()
    assert freed_in == [os.getpid()]


def test_what_the_program_has_frozen_stays_frozen():
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        list(FastLoader(Collecting(), 4, num_workers=1))
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
    finally:
        if not frozen:
            gc.unfreeze()


@pytest.mark.heavy
def test_timeout_is_an_error():
    loader = FastLoader(Ending("exit", 99), 1, sampler=[18], num_workers=1, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"no batch within timeout=0\.2 seconds"):
        list(loader)
    with pytest.raises(ValueError, match="timeout=-1: allowed"):
        FastLoader(Pids(), num_workers=1, timeout=-1)


def test_many_indices_and_long_texts_fill_no_connection():
    long, order = [*range(40_000)], [[*range(2000)], [3], [*range(1000)]] * 2
    loader = FastLoader(
        Samples("x".__mul__, 2000), batch_sampler=order, collate_fn=list, num_workers=1
    )
    assert [len(batch) for batch in loader] == [2000, 1, 1000] * 2
    counted = FastLoader(Samples(abs, len(long)), batch_sampler=[long, [3]] * 2, num_workers=1)
    assert [len(batch) for batch in counted] == [len(long), 1] * 2


def test_state_resumes_the_rest_of_an_epoch():
    source = Samples(draw_everything, 23)
    loader = FastLoader(source, 3, shuffle=True, num_workers=2)
    running = iter(loader)
    for _ in range(3):
        next(running)
    state = loader.state_dict()
    rest = values(running)
    for how in HOW:
        resumed = FastLoader(source, 3, shuffle=True, **how)
        resumed.load_state_dict(state)
        assert values(resumed) == rest


@pytest.mark.parametrize(
    ("source", "given_settings"),
    [
        (torch.arange(20), {}),
        ([(index, index) for index in range(20)], {}),
        (Pids(), {"thread_safe": True}),
        (Pids(), {"num_threads": 1}),
    ],
    ids=["rows", "list", "thread-safe", "num_threads"],
)
def test_threads_read_what_they_may_share_and_where_they_are_asked_for(source, given_settings):
    before = children()
    running = iter(FastLoader(source, 2, num_workers=2, **given_settings))
    next(running)
    assert children() == before


def test_processes_and_threads_end(tmp_path):
    threads, before = os_threads.count_threads(), num_children()
    for _ in range(3):
        with suppress(ZeroDivisionError):
            for batch in FastLoader(Failing(9, ZeroDivisionError()), num_workers=2, transform=abs):
                del batch
    assert os_threads.falls_to(threads)
    assert os_threads.falls_to(before, num_children)


class Keeping(Samples):
    """Samples that the Dataset collates itself, and keeps."""

    def __init__(self) -> None:
        super().__init__(lambda index: torch.full((2,), index), 5)
        self.kept = {}

    def __getitem__(self, index: int):
        if index not in self.kept:
            self.kept[index] = default_collate([self.make(index), self.make(index)])
        return self.kept[index], index


def test_tensors_that_a_dataset_has_collated_and_keeps_stay_as_they_are():
    order = [0, 0, 0, 0, *[1, 2, 3, 4] * 10]
    for frames, labels in FastLoader(Keeping(), 2, sampler=order, num_workers=1):
        assert (frames == labels.view(-1, 1, 1)).all()
        del frames, labels  # their memory is used for a later batch


def pad(tensors: list[torch.Tensor], *, collate_fn_map=None) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def test_processes_collate_by_functions_that_the_program_has_registered(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, pad)
    loader = FastLoader(Samples(lambda index: torch.ones(index + 1), 6), 2, num_workers=1)
    assert [tuple(batch.shape) for batch in loader] == [(2, 2), (2, 4), (2, 6)]


def test_processes_do_not_run_the_programs_handler_of_sigterm(tmp_path):
    """It may write a checkpoint, and a scheduler sends the signal to all processes of a job."""
    before = signal.signal(signal.SIGTERM, lambda *_: (tmp_path / str(os.getpid())).touch())
    try:
        running = iter(FastLoader(Pids(), 2, num_workers=1))
        _, pids, _ = next(running)
        os.kill(int(pids[0]), signal.SIGTERM)
        with pytest.raises(RuntimeError, match="has ended: killed by SIGTERM"):
            list(running)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())


class LongErrors(Pids):
    """Numbers; each sample raises an error with a long text."""

    def __getitem__(self, index: int):
        raise LookupError(f"{index} of {'x' * 40_000}")


def draw_slowly(count: int, size: int):
    for _ in range(count):
        threading.Event().wait(0.01)  # the process has made its batch before the next is drawn
        yield [0] * size


@pytest.mark.parametrize("transform", [None, list])
def test_long_errors_and_long_tasks_do_not_wait_for_each_other(transform):
    loader = FastLoader(
        LongErrors(),
        batch_sampler=draw_slowly(64, 1 << 13),
        num_workers=1,
        prefetch_factor=64,
        seed=0,
        transform=transform,
    )
    running = iter(loader)
    for _ in range(64):
        with pytest.raises(LookupError):
            next(running)
    assert list(running) == []
