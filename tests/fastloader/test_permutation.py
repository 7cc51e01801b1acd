"""Permutations that are computed index by index and never stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloop import FastLoader
from fastloop.fastloader import feistel as module
from fastloop.fastloader import order
from fastloop.fastloader.feistel import FeistelPermutation, random_permutation

SMALL = 1 << 10


def seeded_permutation(num_samples: int, seed: int) -> FeistelPermutation:
    return random_permutation(num_samples, torch.Generator().manual_seed(seed))


@given(num_samples=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1))
def test_permutation_holds_every_index_once(num_samples, seed):
    indices = np.concatenate(list(seeded_permutation(num_samples, seed).pieces()))
    assert indices.dtype == np.int64
    assert sorted(indices) == [*range(num_samples)]


@given(st.integers(1, 500), st.integers(1, 7), st.integers(1, 40))
def test_ranks_share_the_permutation_of_one_process(num_samples, world_size, piece):
    permutation = seeded_permutation(num_samples, 3)
    before, module.PIECE = module.PIECE, piece
    try:
        expected = np.concatenate(list(permutation.pieces()))
        ranks = [
            np.concatenate(list(permutation.pieces(rank, world_size))) for rank in range(world_size)
        ]
    finally:
        module.PIECE = before
    merged = np.stack(ranks, axis=1).reshape(-1)
    assert np.array_equal(merged[:num_samples], expected)
    assert np.array_equal(merged[num_samples:], np.resize(expected, len(merged))[num_samples:])


@pytest.mark.parametrize("num_samples", [2**31 + 1, 10**10, 2**44])
def test_permutation_indexes_more_samples_than_memory_holds(num_samples):
    permutation = seeded_permutation(num_samples, 1)
    indices = permutation.indices_at(np.r_[0:2000, num_samples - 2000 : num_samples])
    assert len(set(indices.tolist())) == 4000
    assert 0 <= indices.min() < indices.max() < num_samples
    assert abs(indices.mean() / num_samples - 0.5) < 0.03  # standard error: 0.0046


@pytest.mark.parametrize("num_samples", [1280, 2048, 6400, 99_968])
def test_positions_and_steps_are_uniform(num_samples):
    positions, steps = np.zeros(64), np.zeros(64)
    for seed in range(200):
        indices = seeded_permutation(num_samples, seed).indices_at(np.arange(1000))
        positions += np.bincount(indices * 64 // num_samples, minlength=64)
        differences = np.diff(indices) % num_samples
        steps += np.bincount(differences * 64 // num_samples, minlength=64)
    for counts in (positions, steps):
        expected = counts.sum() / 64
        assert (
            (counts - expected) ** 2 / expected
        ).sum() < 123  # chi-square with 63 degrees of freedom: p = 1e-5


@pytest.mark.heavy
def test_first_pairs_of_many_permutations_are_uniform():
    firsts = np.array(
        [seeded_permutation(100, seed).indices_at(np.arange(100))[:2] for seed in range(20_000)]
    )
    counts = np.bincount(firsts[:, 0] * 100 + firsts[:, 1], minlength=10_000)
    pairs = counts.reshape(100, 100)[~np.eye(100, dtype=bool)]
    assert np.trace(counts.reshape(100, 100)) == 0
    expected = 20_000 / 9900
    assert ((pairs - expected) ** 2 / expected).sum() < 9899 + 5 * (2 * 9899) ** 0.5


def test_permutation_of_a_seed_is_reproducible():
    assert seeded_permutation(1_000_003, 7).indices_at(np.arange(4)).tolist() == KNOWN


KNOWN = [381696, 688892, 535769, 271291]


@pytest.fixture
def large_range(monkeypatch):
    """Samples above the limit up to which torch.randperm is used."""
    monkeypatch.setattr(order, "MAX_RANDPERM", SMALL)
    return torch.arange(SMALL + 77)


def test_large_epoch_computes_its_order_lazily(large_range):
    loader = FastLoader(large_range, 10, shuffle=True, num_threads=2, seed=0)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(epoch) == large_range.tolist()
    other = FastLoader(large_range, 10, shuffle=True, num_threads=0, seed=0)
    other.set_epoch(1)
    assert torch.cat(list(other)).tolist() == epochs[1]


def test_lazy_order_resumes_from_the_generators_saved_state(large_range):
    generator = torch.Generator().manual_seed(5)
    loader = FastLoader(large_range, 10, shuffle=True, generator=generator)
    running = iter(loader)
    first = [next(running).tolist() for _ in range(40)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in running]
    other = FastLoader(large_range, 10, shuffle=True, generator=torch.Generator().manual_seed(6))
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
    assert sorted(sum(first + rest, [])) == large_range.tolist()  # noqa: RUF017
    assert torch.cat(list(loader)).tolist() == torch.cat(list(other)).tolist()


def test_ranks_share_a_lazy_order(large_range):
    shares = [
        torch.cat(list(FastLoader(large_range, 10, shuffle=True, rank=rank, world_size=3)))
        for rank in range(3)
    ]
    assert {len(share) for share in shares} == {-(-len(large_range) // 3)}
    assert set(torch.cat(shares).tolist()) == set(large_range.tolist())
