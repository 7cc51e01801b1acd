"""A Dataset is read by the loop itself until a thread saves time; batches are the same."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fastloop import FastLoader
from fastloop.core.current_batch import UNKNOWN, current_batch
from fastloop.fastloader.global_generators import GENERATORS
from fastloop.fastloader.loader_tuning import Tuning
from fastloop.fastloader.loop_or_threads import (
    DECIDED,
    FEWEST_COMPARED,
    FORGIVING,
    TURN,
    LoopOrThreads,
)
from fastloop.fastloader.read_times import ReadTimes

MS = 1_000_000
TWO_CORES = Tuning(1, 2, num_cores=2)


class Threads(Dataset):
    """The index of each sample, and the threads that read it."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds
        self.readers: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.readers.append(threading.get_ident())
        time.sleep(self.seconds)
        return index


class Stream(IterableDataset):
    """The samples of a dataset, one after the other."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return map(self.dataset.__getitem__, range(len(self.dataset)))


@pytest.mark.parametrize("thread_safe", [False, True])
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, Stream], ids=["map", "stream"])
def test_cheap_samples_are_read_by_the_loop(wrap, thread_safe):
    dataset = Threads(400)
    loader = FastLoader(wrap(dataset), 8, thread_safe=thread_safe)
    for _ in range(2):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(400))
    assert {*dataset.readers} == {threading.get_ident()}


class SlowInThreads(Threads):
    """Samples that take longer in a thread than in the loop, as if the thread took its core."""

    def __getitem__(self, index: int) -> int:
        if threading.get_ident() != self.owner:
            time.sleep(8 * self.seconds)
        return super().__getitem__(index)

    def __init__(self, count: int, seconds: float) -> None:
        super().__init__(count, seconds)
        self.owner = threading.get_ident()


def test_loop_reads_again_after_a_turn_in_which_a_thread_was_slower():
    dataset = SlowInThreads(40, seconds=0.01)
    loader = FastLoader(dataset, 1)
    batches = []
    for batch in loader:
        batches += batch.tolist()
        time.sleep(0.01)
    assert batches == [*range(40)]
    by_loop = [reader == dataset.owner for reader in dataset.readers]
    turn = [place for place, own in enumerate(by_loop) if not own]
    assert turn == [*range(turn[0], turn[0] + len(turn))], "one turn"
    # A thread makes two batches ahead of the loop, also of the last one of its turn. The turn ends
    # after three batches that take much longer.
    assert FEWEST_COMPARED <= len(turn) <= TURN + 2
    assert by_loop[-10:] == [True] * 10


@pytest.mark.parametrize("ratio", [0.1, 0.7, 1.4, 5.0])
@pytest.mark.parametrize("busy", [(), range(3, 15), range(20, 31)], ids=str)
def test_turns_find_the_faster_way(ratio, busy):
    """Also on a machine that is busy for some batches, which take five times as long."""
    choice, ways = LoopOrThreads(), []
    for place in range(20_000):
        by_threads = bool(choice.num_threads)
        ways.append(by_threads)
        ns = (10 * MS + 10 * MS) * (5 if place in busy else 1)
        choice.note_time(int(ns * ratio) if by_threads else ns)
        if not by_threads:
            choice.decide_on_threads(busy_batch(10, 10), TWO_CORES)
    assert (choice.num_threads > 0) == (ratio < 1)
    slower = [each for each in ways if each == (ratio > 1)]
    # A busy turn is outvoted by later ones, of which the leading way's get longer and longer.
    assert len(slower) <= (4000 if busy else 8 * TURN)
    assert busy or choice.is_decided


@pytest.mark.heavy
def test_other_pass_over_the_same_loader_takes_no_batch_of_a_pass():
    """Both change who reads."""
    loader = FastLoader(SlowInThreads(60, seconds=0.004), 1)
    seen = []
    for number, batch in enumerate(loader):
        seen += batch.tolist()
        time.sleep(0.004)
        if number % 3 == 2:
            for _, other in zip(range(4), loader, strict=False):
                assert other.tolist() == [_]
                time.sleep(0.004)
    assert seen == [*range(60)]


def test_times_of_two_epochs_are_not_compared():
    """One of them may have larger batches, or no steps."""
    choice = LoopOrThreads(num_threads=1, turn_threads=1, batches_left=TURN, loop_ns=(MS,) * 5)
    choice.begin_epoch()
    for _ in range(TURN):
        choice.note_time(50 * MS)
    assert (choice.evidence, choice.num_threads) == (0.0, 1)


def test_a_few_slow_steps_decide_nothing():
    """As of torch.compile, or of a page cache that is empty."""
    choice = LoopOrThreads(num_threads=1, turn_threads=1, batches_left=TURN)
    choice.loop_ns = (300 * MS, 300 * MS, 8 * MS, 8 * MS, 8 * MS)
    for _ in range(TURN):
        choice.note_time(9 * MS)
    assert choice.num_threads == 0
    choice = LoopOrThreads(
        num_threads=1, turn_threads=1, batches_left=TURN, loop_ns=(300 * MS,) * 3
    )
    for _ in range(TURN):
        choice.note_time(9 * MS)
    assert not choice.is_decided


@pytest.mark.parametrize("num_between", [FORGIVING - 1, FORGIVING])
def test_an_error_of_a_thread_alone_is_forgotten_after_many_batches_of_threads(num_between):
    """Errors of a disk that pass must not add up over days."""
    choice = LoopOrThreads(num_threads=1, turn_threads=1, evidence=2 * DECIDED)
    choice.note_failure()
    assert (choice.num_threads, choice.needs_loop) == (1, False)
    for _ in range(num_between):
        choice.note_time(MS)
    choice.note_failure()
    assert choice.needs_loop == (num_between < FORGIVING)
    assert choice.num_threads == (not choice.needs_loop)


def test_samples_that_take_as_long_as_a_step_are_read_by_a_thread_after_the_third_batch():
    dataset = Threads(12, seconds=0.04)
    loader = FastLoader(dataset, 2)
    for _ in loader:
        time.sleep(0.08)
    assert dataset.readers[:6] == [threading.get_ident()] * 6
    assert threading.get_ident() not in dataset.readers[6:]
    # The loader remembers it.
    assert [batch.tolist() for batch in loader] == [[k, k + 1] for k in range(0, 12, 2)]
    assert threading.get_ident() not in dataset.readers[12:]


def test_several_threads_read_samples_that_wait_after_the_third_batch():
    dataset = Threads(40, seconds=0.1)
    loader = FastLoader(dataset, 2, thread_safe=True)
    assert torch.cat([*loader, *loader]).tolist() == [*range(40)] * 2
    assert dataset.readers[:6] == [threading.get_ident()] * 6
    assert threading.get_ident() not in dataset.readers[6:]
    # More than there are cores on most machines.
    assert len({*dataset.readers[6:40]}) == 16


class TorchThreads(Threads):
    """For each sample and each transform, whether the main thread made it, and with how many of
    torch's threads."""

    def __init__(self, draw: Callable[[], Any] = int) -> None:
        super().__init__(40, seconds=0.01)
        self.draw, self.found = draw, []

    def __getitem__(self, index: int) -> int:
        self.draw()
        self.note()
        return super().__getitem__(index)

    def note(self, batch: Any = None) -> Any:
        is_loop = threading.current_thread() is threading.main_thread()
        self.found.append((is_loop, torch.get_num_threads()))
        return batch


# The last digits of a long sum depend on that number.
@pytest.mark.filterwarnings("ignore:samples use the global random generators")
@pytest.mark.parametrize(
    ("wrap", "settings", "has_threads"),
    [
        (lambda dataset: dataset, {}, True),
        (lambda dataset: dataset, {"num_threads": 2}, True),
        (lambda dataset: dataset, {"num_threads": 0}, False),
        (Stream, {"num_threads": 1}, True),
        (lambda _: torch.arange(40), {"num_threads": 1}, True),
    ],
    ids=["default", "two", "none", "stream", "rows"],
)
@pytest.mark.parametrize("draw", [int, np.random.rand])
def test_batches_of_the_loop_have_its_number_of_torch_threads(wrap, settings, has_threads, draw):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        dataset = TorchThreads(draw)
        loader = FastLoader(wrap(dataset), 2, thread_safe=True, transform=dataset.note, **settings)
        for _ in loader:
            time.sleep(0.02)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    # Samples that draw from numpy's generator are read by the loop alone.
    reads_here = wrap(dataset) is dataset or wrap is Stream
    threads = {(False, 1)} if has_threads and not (reads_here and draw is not int) else set()
    # Threads that were asked for have one of torch's each, and so has the loop beside them.
    own = 1 if settings.get("num_threads") else 3
    assert {*dataset.found} == {(True, own)} | threads


def to_sparse(samples: list[int]) -> torch.Tensor:
    return torch.tensor(samples).to_sparse()


def test_batches_of_unknown_size_are_delivered_and_read_by_few_threads():
    loader = FastLoader(Threads(20, seconds=0.1), 2, thread_safe=True, collate_fn=to_sparse)
    assert [batch.to_dense().tolist() for batch in loader] == [[k, k + 1] for k in range(0, 20, 2)]
    assert len({*loader.dataset.readers}) < 16


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_that_were_asked_for_read_all_batches_but_the_first(num_threads):
    dataset = Threads(40)
    list(FastLoader(dataset, 4, num_threads=num_threads, thread_safe=True))
    assert {*dataset.readers[:4]} == {threading.get_ident()}
    assert threading.get_ident() not in dataset.readers[4:]


@pytest.mark.parametrize(
    ("times", "most_threads", "expected"),
    [
        # (reading, step) in ms of successive batches of ten samples -> threads that begin
        ([(50, 50)], 1, 0),  # a file may have been opened
        ([(50, 50)] * 2, 1, 1),
        ([(50, 0.01)] * 20, 1, 0),  # the loop only traverses
        ([(0.1, 50)] * 20, 1, 0),  # reading takes no time
        ([(5, 5)] * 4, 1, 0),  # not confirmed yet
        ([(5, 5)] * 5, 1, 1),
        ([(5, 5)] * 3 + [(5, 0)] + [(5, 5)] * 4, 1, 0),
        ([(0.2, 0.01)] * 20, 4, 0),  # cheap samples: the threads would wait for Python's lock
        ([(50, 0.01)] * 20, 4, 4),  # several threads read at the same time
        ([(500, 0.01)] * 2, 4, 4),
        ([(1, 5)] * 5, 4, 1),  # one thread hides this behind the step
    ],
)
def test_threads_begin_if_they_save_more_than_they_cost(times, most_threads, expected):
    choice = LoopOrThreads()
    for reading_ms, step_ms in times:
        choice.decide_on_threads(
            busy_batch(reading_ms, step_ms), Tuning(most_threads, 2, num_cores=4)
        )
    assert choice.num_threads == expected


@pytest.mark.parametrize(
    ("num_cores", "step_cores", "expected"),
    [(2, 1.0, 1), (2, 1.8, 0), (4, 1.8, 1), (4, 3.9, 0), (1, 0.1, 1), (1, 1.0, 0)],
)
def test_thread_begins_if_the_step_leaves_it_a_core(num_cores, step_cores, expected):
    choice, times = (
        LoopOrThreads(),
        replace(busy_batch(10, 12), step_cpu_ns=int(12 * MS * step_cores)),
    )
    for _ in range(20):
        choice.decide_on_threads(times, Tuning(1, 2, num_cores=num_cores))
    assert choice.num_threads == expected


def busy_batch(reading_ms: float, step_ms: float) -> ReadTimes:
    """The times of a batch of ten samples, which a core has computed all the time."""
    reading_ns, step_ns = int(reading_ms * MS), int(step_ms * MS)
    return ReadTimes(
        reading_ns=reading_ns,
        cpu_ns=reading_ns,
        pauses=0,
        step_ns=step_ns,
        num_samples=10,
        nbytes=1000,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 16),
        ({"cpu_ns": 60 * MS}, 4),  # they compute as well
        ({"pauses": 2}, 4),  # the machine is busy, so that the thread has no core
        ({"nbytes": 4 << 20}, 8),  # 64 MiB are made ahead, two batches by each thread
        ({"nbytes": 1 << 30}, 4),
        ({"nbytes": None}, 4),
    ],
    ids=str,
)
def test_many_threads_read_samples_that_wait(changes, expected):
    waiting = replace(busy_batch(100, 1), cpu_ns=2 * MS, pauses=10)
    times = replace(waiting, **changes)
    for waiting_threads, most in ((16, expected), (0, 4)):
        choice = LoopOrThreads()
        for _ in range(2):
            choice.decide_on_threads(
                times, Tuning(4, 2, waiting_threads=waiting_threads, num_cores=4)
            )
        assert choice.num_threads == most


class Seldom(Dataset):
    """Samples that draw from `first` on."""

    def __init__(self, draw: Callable[[], Any], first: int) -> None:
        self.draw, self.first = draw, first

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(self.draw()) if index >= self.first else -1.0


def test_threads_do_not_draw_from_generators_that_later_samples_share():
    """Only the samples from the fifth on draw, when a thread should save time already."""

    class Slow(Seldom):
        def __getitem__(self, index: int) -> tuple[int, float]:
            time.sleep(0.01)
            return super().__getitem__(index)

    drawn = []
    for num_threads in (0, None):
        loader = FastLoader(Slow(np.random.rand, 5), 1, num_threads=num_threads, seed=0)
        np.random.seed(1)
        values = []
        for batch in loader:
            values += batch[1].tolist()
            time.sleep(0.01)
        drawn.append((values, np.random.rand()))
    assert drawn[0] == drawn[1]


KINDS = {
    "torch": lambda: torch.rand(()),
    "numpy": np.random.rand,
    "random": random.random,
    "two": lambda: np.random.rand() + torch.rand(()).item(),
}


# By default a thread begins on a busy machine, where only torch's draws can be given a generator.
@pytest.mark.parametrize(
    ("kind", "num_threads"), [("torch", None), *((kind, 0) for kind in KINDS)], ids=str
)
@pytest.mark.parametrize("batch_size", [4, None])
def test_draws_that_begin_after_the_first_batch_are_seeded_by_the_sample(
    kind, batch_size, num_threads
):
    settings = {"batch_size": batch_size, "shuffle": False, "num_threads": num_threads, "seed": 3}
    later = FastLoader(Seldom(KINDS[kind], 30), **settings)
    always = FastLoader(Seldom(KINDS[kind], 0), **settings)
    watched = {name: each.watch() for name, each in GENERATORS.items()}
    for _ in range(2):
        pairs = list(zip(later, always, strict=True))
        drawn = np.concatenate([np.atleast_1d(first[1]) for first, _ in pairs])
        expected = np.concatenate([np.atleast_1d(second[1]) for _, second in pairs])
        assert (drawn[30:] == expected[30:]).all()
        assert (drawn[:30] == -1).all()
        assert len({*expected}) == 40
    assert {name: each.watch() for name, each in GENERATORS.items()} == watched


@pytest.mark.parametrize("kind", ["torch", "numpy", "random"])
def test_stream_that_begins_to_draw_after_its_first_batch_is_told(kind):
    """Its samples can't be read again."""
    loader = FastLoader(Stream(Seldom(KINDS[kind], 30)), 4, num_threads=0, seed=3)
    watched = {name: each.watch() for name, each in GENERATORS.items()}
    with pytest.warns(UserWarning, match=f"global generators of {kind}, but not for its first"):
        first = torch.cat([batch[1] for batch in loader])
    assert {name: each.watch() for name, each in GENERATORS.items()} == watched
    second = torch.cat([batch[1] for batch in loader])
    always = FastLoader(Stream(Seldom(KINDS[kind], 0)), 4, num_threads=0, seed=3)
    expected = [torch.cat([batch[1] for batch in always]) for _ in range(2)]
    assert first[32:].tolist() == expected[0][32:].tolist()
    assert second[30:].tolist() == expected[1][30:].tolist()


@pytest.mark.filterwarnings("ignore:samples use the global random generators")
@pytest.mark.parametrize("first", [29, 30, 31, 34])
def test_late_normal_numbers_leave_the_programs_ones_alone(first):
    """Both kinds are made in pairs, of which the second is kept for the next call."""

    class Once(Seldom):
        def __getitem__(self, index: int) -> tuple[int, float]:
            return super().__getitem__(index) if index == first else (index, -1.0)

    for draw, seed in (
        (np.random.randn, np.random.seed),
        (lambda: random.gauss(0, 1), random.seed),
    ):
        seed(0)
        expected = [draw() for _ in range(10)]
        seed(0)
        batches = [(draw(), batch[1]) for batch in FastLoader(Once(draw, first), 4, seed=3)]
        assert [number for number, _ in batches] == expected
        always = torch.cat([batch[1] for batch in FastLoader(Seldom(draw, 0), 4, seed=3)])
        assert torch.cat([values for _, values in batches])[first] == always[first]


def test_numbers_of_the_program_go_on_as_beside_dataloader():
    """Samples that draw nothing leave the program's generators to it."""
    dataset = Threads(20)
    numbers = {}
    for make in (DataLoader, FastLoader):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        drawn = [
            (torch.rand(()).item(), np.random.randn(), random.gauss(0, 1))
            for _ in make(dataset, 4, shuffle=True)
        ]
        numbers[make.__name__] = drawn
    assert numbers["DataLoader"] == numbers["FastLoader"]


def test_loader_in_a_sample_leaves_the_number_of_the_outer_batch():
    """Attach and explain number the work on a batch by it."""
    current_batch().number = 5
    try:
        assert len(list(FastLoader(Seldom(torch.rand, 40), 8, num_threads=0))) == 5
        assert current_batch().number == 5
    finally:
        current_batch().number = UNKNOWN
