"""Permutations that are computed, and not kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloop import FastLoader
from fastloop.fastloader import drawn as module
from fastloop.fastloader import order
from fastloop.fastloader.drawn import Drawn, drawn

SMALL = 1 << 10


def of_seed(num_samples: int, seed: int) -> Drawn:
    return drawn(num_samples, torch.Generator().manual_seed(seed))


@settings(max_examples=200, deadline=None)
@given(num_samples=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1))
def test_every_sample_comes_once(num_samples, seed):
    found = np.concatenate(list(of_seed(num_samples, seed).pieces()))
    assert found.dtype == np.int64
    assert sorted(found) == [*range(num_samples)]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.integers(1, 7), st.integers(1, 40))
def test_ranks_share_what_one_alone_has(num_samples, world_size, piece):
    whole = of_seed(num_samples, 3)
    before, module.PIECE = module.PIECE, piece
    try:
        (alone,) = [np.concatenate(list(whole.pieces()))]
        ranks = [np.concatenate(list(whole.pieces(rank, world_size))) for rank in range(world_size)]
    finally:
        module.PIECE = before
    laid = np.stack(ranks, axis=1).reshape(-1)
    assert np.array_equal(laid[:num_samples], alone)
    assert np.array_equal(laid[num_samples:], np.resize(alone, len(laid))[num_samples:])


@pytest.mark.parametrize("num_samples", [2**31 + 1, 10**10, 2**44])
def test_more_samples_than_memory_would_hold(num_samples):
    whole = of_seed(num_samples, 1)
    found = whole.at(np.r_[0:2000, num_samples - 2000 : num_samples])
    assert len(set(found.tolist())) == 4000
    assert 0 <= found.min() < found.max() < num_samples
    assert abs(found.mean() / num_samples - 0.5) < 0.03  # its standard error is 0.0046


@pytest.mark.parametrize("num_samples", [1280, 2048, 6400, 99_968])
def test_no_place_and_no_step_is_more_frequent_than_another(num_samples):
    places, steps = np.zeros(64), np.zeros(64)
    for seed in range(200):
        found = of_seed(num_samples, seed).at(np.arange(1000))
        places += np.bincount(found * 64 // num_samples, minlength=64)
        ahead = np.diff(found) % num_samples
        steps += np.bincount(ahead * 64 // num_samples, minlength=64)
    for counted in (places, steps):
        expected = counted.sum() / 64
        assert ((counted - expected) ** 2 / expected).sum() < 123  # chi-square, 63: p = 1e-5


def test_the_first_of_many_orders_are_all_different_and_any_sample():
    firsts = np.array([of_seed(100, seed).at(np.arange(100))[:2] for seed in range(20_000)])
    counts = np.bincount(firsts[:, 0] * 100 + firsts[:, 1], minlength=10_000)
    pairs = counts.reshape(100, 100)[~np.eye(100, dtype=bool)]
    assert np.trace(counts.reshape(100, 100)) == 0
    expected = 20_000 / 9900
    assert ((pairs - expected) ** 2 / expected).sum() < 9899 + 5 * (2 * 9899) ** 0.5


def test_a_seed_stands_for_one_order_wherever_it_is_drawn():
    assert of_seed(1_000_003, 7).at(np.arange(4)).tolist() == KNOWN


KNOWN = [381696, 688892, 535769, 271291]


@pytest.fixture
def many(monkeypatch):
    """More samples than are kept as a permutation."""
    monkeypatch.setattr(order, "KEPT", SMALL)
    return torch.arange(SMALL + 77)


def test_a_large_epoch_is_drawn_as_it_goes_on(many):
    loader = FastLoader(many, 10, shuffle=True, num_threads=2)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(epoch) == many.tolist()
    again = FastLoader(many, 10, shuffle=True, num_threads=0)
    again.set_epoch(1)
    assert torch.cat(list(again)).tolist() == epochs[1]


def test_it_goes_on_where_it_was_left_and_depends_on_the_generator(many):
    generator = torch.Generator().manual_seed(5)
    loader = FastLoader(many, 10, shuffle=True, generator=generator)
    running = iter(loader)
    first = [next(running).tolist() for _ in range(40)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in running]
    other = FastLoader(many, 10, shuffle=True, generator=torch.Generator().manual_seed(6))
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
    assert sorted(sum(first + rest, [])) == many.tolist()  # noqa: RUF017
    assert torch.cat(list(loader)).tolist() == torch.cat(list(other)).tolist()


def test_ranks_have_shares_of_it(many):
    shares = [
        torch.cat(list(FastLoader(many, 10, shuffle=True, rank=rank, world_size=3)))
        for rank in range(3)
    ]
    assert {len(share) for share in shares} == {-(-len(many) // 3)}
    assert set(torch.cat(shares).tolist()) == set(many.tolist())
