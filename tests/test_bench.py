"""bench_all: loaders of one's own, compared in one process by the same rules."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastloop
from fastloop import window
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


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"epochs": 0}])
def test_wrong_numbers_are_named(wrong):
    with pytest.raises(ValueError, match="=0"):
        fastloop.bench_all({"a": DataLoader(DATA)}, **wrong)


def test_every_place_comes_first_equally_often_and_in_every_round_once():
    order = rounds([8, 8, 8, 8])
    assert all(sorted(one) == [0, 1, 2, 3] for one in order)
    assert [[one[0] for one in order].count(place) for place in range(4)] == [2, 2, 2, 2]
    assert [len(one) for one in rounds([1, 3])] == [2, 1, 1]
    assert len({tuple(one) for one in rounds([24] * 4)}) > 8
