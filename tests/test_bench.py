"""bench and bench_all: loaders of one's own, in one process by the same rules."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastloop
from fastloop import spans, window
from fastloop.schedule import rounds
from fastloop.types import Invalid

DATA = TensorDataset(torch.arange(60.0).view(30, 2), torch.arange(30))


class Clock:
    """Time as the loaders below let it pass."""

    def __init__(self):
        self.ns, self.noise = 0, random.Random(0)

    def loader(self, batch_ns: int):
        def epochs(number):
            for batch in DataLoader(DATA, batch_size=10):
                self.ns += int(batch_ns * self.noise.uniform(0.98, 1.02))
                yield batch

        return epochs


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(window, "now_ns", lambda: made.ns)
    return made


def test_a_slower_loader_is_told_apart_and_ranked_behind(clock):
    loaders = {"slow": clock.loader(3_000_000), "fast": clock.loader(1_000_000)}
    found = fastloop.bench_all(loaders, trials=10)
    assert found.ranking.ranks == {"fast": 1, "slow": 2}
    assert found.samples == 30
    ratio = found.ratios["fast"]
    assert ratio is not None
    assert ratio.low < 1 / 3 < ratio.high
    assert found.seconds["fast"] == pytest.approx([0.003] * 10, rel=0.02)
    assert str(found).splitlines()[0].split()[:2] == ["fast", "1"]
    assert max(map(len, str(found).splitlines())) <= 80


def test_every_batch_of_every_epoch_goes_through_the_step():
    seen = []
    loader = DataLoader(DATA, batch_size=7)
    fastloop.bench_all(
        {"a": loader}, step=lambda batch: seen.append(len(batch[1])), trials=3, epochs=2
    )
    assert sum(seen) == 30 * (1 + 3 * 2)


def test_the_sampler_is_told_the_epoch():
    class Sampler(torch.utils.data.SequentialSampler):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    loader = DataLoader(DATA, batch_size=10, sampler=Sampler(DATA))
    fastloop.bench_all({"a": loader}, trials=1, epochs=2)
    assert Sampler.epochs == [0, 0, 0, 1]  # digested, warmed up, timed


def test_loaders_that_deliver_something_else_are_refused():
    other = TensorDataset(DATA.tensors[0] + 1, DATA.tensors[1])
    loaders = {"a": DataLoader(DATA, 10), "b": DataLoader(other, 10)}
    with pytest.raises(Invalid, match=r"b does not deliver what a does: .*same_data=False"):
        fastloop.bench_all(loaders, trials=1)
    assert fastloop.bench_all(loaders, trials=1, same_data=False).samples == 30
    short = {"a": DataLoader(DATA, 7), "b": DataLoader(DATA, 7, drop_last=True)}
    with pytest.raises(Invalid, match=r"28 samples came, not 30$"):
        fastloop.bench_all(short, trials=1, same_data=False)


def test_an_iterator_is_refused_because_it_has_one_epoch_only():
    with pytest.raises(ValueError, match="one epoch only"):
        fastloop.bench_all({"a": iter(DataLoader(DATA))}, trials=1)
    with pytest.raises(ValueError, match="one epoch only"):
        fastloop.bench(iter(DataLoader(DATA)), trials=1)


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"epochs": 0}])
def test_wrong_numbers_are_named(wrong):
    with pytest.raises(ValueError, match="=0"):
        fastloop.bench_all({"a": DataLoader(DATA)}, **wrong)
    with pytest.raises(ValueError, match="=0"):
        fastloop.bench(DataLoader(DATA), **wrong)


def test_one_loader_alone_tells_its_seconds_waits_and_limit(clock, monkeypatch):
    monkeypatch.setattr(spans, "now_ns", lambda: clock.ns)
    found = fastloop.bench(clock.loader(2_000_000), trials=6, epochs=2)
    assert found.seconds == pytest.approx([0.012] * 6, rel=0.02)
    assert (found.samples, found.epochs, len(found.wait_s)) == (30, 2, 3)
    assert found.samples_per_s == pytest.approx(5000, rel=0.02)
    low, high = found.samples_per_s_interval or (0, 0)
    assert low < found.samples_per_s < high
    assert found.first_batch_s == pytest.approx(0.002, rel=0.03)
    assert found.wait_fraction == pytest.approx(1)
    assert found.limit_samples_per_s is not None
    assert found.limit_fraction == found.samples_per_s / found.limit_samples_per_s
    lines = str(found).splitlines()
    assert lines[0] == "30 samples in 3 batches, 6 trials of 2 epochs each, device cpu"
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 6


def test_a_step_of_ones_own_gets_every_batch_and_has_no_limit():
    seen = []
    found = fastloop.bench(
        DataLoader(DATA, batch_size=7), lambda batch: seen.append(len(batch[1])), trials=2, epochs=3
    )
    assert sum(seen) == 30 * (1 + 2 * 3 + 1)
    assert found.limit_fraction is None
    assert found.samples_per_s_interval is None
    assert "limit" not in str(found)
    assert "machine" not in str(found)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ([], "it yields nothing"),
        ([("a", "b")], "a batch is tensors of one length"),
        ([(torch.zeros(2), torch.zeros(3))], "a batch is tensors of one length"),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], "batches differ"),
        (lambda epoch: itertools.repeat(torch.zeros(1000, 2)), "without an end"),
    ],
)
def test_what_gives_no_batches_or_does_not_end_is_one_line(loader, said):
    with pytest.raises(Invalid, match=said) as refusal:
        fastloop.bench(loader, trials=1)
    assert "\n" not in str(refusal.value)


def test_a_loader_with_more_than_the_first_is_not_waited_for():
    endless = {"a": DataLoader(DATA, 10), "b": lambda epoch: itertools.repeat(DATA[:10])}
    with pytest.raises(Invalid, match="b does not deliver what a does: it yields more than 30"):
        fastloop.bench_all(endless, trials=1)


@pytest.mark.parametrize("wrong", [None, 3])
def test_what_is_no_loader_is_named(wrong):
    with pytest.raises(ValueError, match=r"not (NoneType|int)"):
        fastloop.bench(wrong, trials=1)


def test_every_place_comes_first_equally_often_and_in_every_round_once():
    order = rounds([8, 8, 8, 8])
    assert all(sorted(one) == [0, 1, 2, 3] for one in order)
    assert [[one[0] for one in order].count(place) for place in range(4)] == [2, 2, 2, 2]
    assert [len(one) for one in rounds([1, 3])] == [2, 1, 1]
    assert len({tuple(one) for one in rounds([24] * 4)}) > 8
