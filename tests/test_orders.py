"""The contract of every order found in conf/order, and of dealing one out to ranks."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import MYDATASET, compose_job, options
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.distributed import DistributedSampler

from fastloop.config import ConfigError
from fastloop.fastloader import FastLoader
from fastloop.gate import check_data
from fastloop.loaders.fastloop import epochs_of
from fastloop.orders.blocks import Blocks
from fastloop.orders.random import Random
from fastloop.orders.sequential import Sequential
from fastloop.plans import Permuted, epoch_indices, shard
from fastloop.spans import now_ns
from fastloop.trial import run_trial
from fastloop.types import BadData, Invalid, Plan

MANY = 10**9
SMALL = st.integers(1, 70)
INCOMPLETE = {
    "half of them": ("order=subset", "order.fraction=0.5"),
    "three given ones": ("order=subset", "order.fraction=null", "order.indices={folder}/three.npy"),
    "as many draws": ("order=weighted",),
    "more draws than samples": ("order=weighted", "order.num_samples=450"),
    "weighted draws": ("order=weighted", "order.weights={folder}/weights.npy"),
}


class Allocated(TorchDispatchMode):
    """The bytes of the largest tensor that any operation gives."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.nbytes)
        return result


def order_of(*overrides: str):
    return compose_job(*overrides).order


def saved(folder, **arrays) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize("order", options("order"))
def test_an_order_is_complete_and_the_same_for_the_same_seed_and_epoch(order):
    made = order_of(f"order={order}")
    first = epoch_indices(made, 3000, 3, 5)
    assert first.dtype == torch.int64
    assert len(first) == made.length(3000)
    assert not made.complete or np.array_equal(np.sort(first.numpy()), np.arange(3000))
    assert torch.equal(first, epoch_indices(made, 3000, 3, 5))


PERMUTED = [one for one in options("order") if isinstance(order_of(f"order={one}"), Permuted)]


@pytest.mark.parametrize("order", PERMUTED)
def test_an_order_that_says_so_is_torchs_permutation_of_seed_and_epoch(order):
    found = epoch_indices(order_of(f"order={order}"), 3000, 3, 5)
    assert torch.equal(found, torch.randperm(3000, generator=torch.Generator().manual_seed(8)))


def test_fastloop_draws_itself_what_is_torchs_permutation():
    rows = torch.arange(50)
    for order, itself in (("random", True), ("blocks", False)):
        job = compose_job(f"order={order}", "batch_size=7", "seed=3")
        plan = Plan(batch_size=7, seed=3, order=job.order)
        loader = FastLoader(rows, 7, seed=3)
        epochs = epochs_of(loader, plan)
        assert loader.shuffle is itself
        for epoch in (2, 0):
            found = torch.cat(list(epochs(epoch)))
            assert torch.equal(found, epoch_indices(job.order, 50, 3, epoch))


@pytest.mark.parametrize("order", [one for one in options("order") if one != "sequential"])
def test_an_order_changes_with_seed_and_epoch(order):
    made = order_of(f"order={order}")
    orders = {
        tuple(epoch_indices(made, 3000, seed, epoch).tolist())
        for seed, epoch in [(0, 0), (0, 1), (9, 0)]
    }
    assert len(orders) == 3


@settings(deadline=None)
@given(SMALL, st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
def test_blocks_are_complete_and_keep_the_samples_of_a_group_together(
    num_samples, block_size, together, epoch
):
    order = Blocks(block_size=block_size, groups_together=together)
    indices = epoch_indices(order, num_samples, 1, epoch).tolist()
    assert sorted(indices) == list(range(num_samples))
    pieces = [piece.tolist() for piece in order.pieces(num_samples, 1, epoch)]
    groups = [{index // block_size for index in piece} for piece in pieces]
    assert all(len(one) <= together for one in groups)
    assert sum(map(len, groups)) == -(-num_samples // block_size)


def test_blocks_shuffle_the_groups_and_inside_them():
    indices = epoch_indices(Blocks(block_size=100, groups_together=1), 1000, 0, 0).view(10, 100)
    groups = (indices // 100)[:, 0].tolist()
    assert groups != sorted(groups)
    assert all(group.tolist() != sorted(group.tolist()) for group in indices)


@pytest.mark.parametrize(
    "order",
    [Sequential(), Blocks(block_size=1024, groups_together=8)],
    ids=["sequential", "blocks"],
)
@pytest.mark.parametrize("dealt", [False, True], ids=["whole", "dealt to ranks"])
def test_a_billion_indices_take_no_more_memory_than_a_piece_or_the_table_of_groups(order, dealt):
    with Allocated() as allocated:
        pieces = order.pieces(MANY, 0, 0)
        first = list(islice(shard(pieces, MANY, 3, 8) if dealt else pieces, 20))
    assert min(int(piece.min()) for piece in first) >= 0
    assert max(int(piece.max()) for piece in first) < MANY
    assert allocated.largest <= 8 << 20  # all indices would take 8 GB


def test_what_a_random_order_allocates_is_seen():
    with Allocated() as allocated:
        epoch_indices(Random(), 10**6, 0, 0)
    assert allocated.largest >= 8 * 10**6


def test_a_subset_is_the_same_in_every_epoch_of_a_trial_and_another_in_the_next():
    order = order_of("order=subset", "order.fraction=0.3")
    epochs = [epoch_indices(order, 100, 0, epoch).tolist() for epoch in range(3)]
    assert len(epochs[0]) == len(set(epochs[0])) == order.length(100) == 30
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert set(epoch_indices(order, 100, 10_000, 0).tolist()) != set(epochs[0])


def test_a_subset_of_given_indices_is_these(tmp_path):
    saved(tmp_path, chosen=np.array([7, 2, 99, 2]))
    order = order_of("order=subset", "order.fraction=null", f"order.indices={tmp_path}/chosen.npy")
    assert sorted(epoch_indices(order, 100, 0, 0).tolist()) == [2, 2, 7, 99]
    assert order.length(100) == 4


def test_a_tiny_fraction_is_one_sample():
    assert order_of("order=subset", "order.fraction=0.001").length(10) == 1


def test_draws_follow_their_weights(tmp_path):
    saved(tmp_path, weights=np.array([0, 1, 0, 3, 0]))
    where = f"order.weights={tmp_path}/weights.npy"
    order = order_of("order=weighted", where, "order.num_samples=40000")
    drawn = Counter(epoch_indices(order, 5, 0, 0).tolist())
    assert set(drawn) == {1, 3}
    assert drawn[3] / 40_000 == pytest.approx(0.75, abs=0.01)  # four standard deviations


def test_draws_without_weights_are_uniform_with_replacement():
    drawn = Counter(epoch_indices(order_of("order=weighted"), 1000, 0, 0).tolist())
    assert sum(drawn.values()) == 1000
    assert len(drawn) == pytest.approx(1000 * (1 - np.exp(-1)), abs=50)


def test_draws_come_in_pieces(monkeypatch):
    monkeypatch.setattr("fastloop.orders.weighted.PIECE", 64)
    pieces = list(order_of("order=weighted").pieces(150, 0, 0))
    assert [len(piece) for piece in pieces] == [64, 64, 22]


@pytest.mark.parametrize(
    ("order", "array", "said"),
    [
        ("subset", np.array([0.5, 1]), "indices are integers, not float64"),
        ("subset", np.array([3, 100]), "index 100 is not in 0 to 99"),
        ("subset", np.array([-1, 3]), "index -1 is not in 0 to 99"),
        ("subset", np.zeros((2, 2), int), r"one dimension .* got \[2, 2\]"),
        ("subset", np.zeros(0, int), r"at least one value is wanted, got \[0\]"),
        ("weighted", np.ones(99), "99 weights for 100 samples"),
        ("weighted", np.full(100, -1.0), "finite numbers, none below 0"),
        ("weighted", np.full(100, np.nan), "finite numbers, none below 0"),
        ("weighted", np.full(100, "a"), "finite numbers, none below 0"),
        ("weighted", np.zeros(100), "every weight is 0"),
    ],
)
def test_a_file_that_can_not_be_used_is_named(tmp_path, order, array, said):
    saved(tmp_path, given=array)
    setting = (
        ["order.weights="] if order == "weighted" else ["order.fraction=null", "order.indices="]
    )
    made = order_of(f"order={order}", *setting[:-1], f"{setting[-1]}{tmp_path}/given.npy")
    with pytest.raises(BadData, match=f"given.npy: .*{said}"):
        epoch_indices(made, 100, 0, 0)


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00"])
def test_a_file_of_another_kind_is_named(tmp_path, content):
    (tmp_path / "given.npy").write_bytes(content)
    made = order_of("order=weighted", f"order.weights={tmp_path}/given.npy")
    with pytest.raises(BadData, match=r"given\.npy: not a \.npy file"):
        epoch_indices(made, 100, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("order=weighted order.weights=nowhere.npy", "order.weights=nowhere.npy: Path does not"),
        ("order=subset order.fraction=0", "order.fraction=0: Input should be greater than 0"),
        ("order=subset order.fraction=1.5", "order.fraction=1.5: Input should be less than or"),
        ("order=subset order.fraction=null", "one of both, the other null"),
        ("order=blocks order.block_size=0", "order.block_size=0: Input should be greater than 0"),
    ],
)
def test_a_wrong_value_is_one_line_before_anything_is_measured(wrong, said):
    with pytest.raises(ConfigError) as refused:
        order_of(*wrong.split())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@settings(deadline=None)
@given(SMALL, st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 2))
def test_ranks_get_what_torchs_distributed_sampler_gives_them(
    num_samples, world_size, shuffle, drop_last, epoch
):
    for rank in range(world_size):
        theirs = DistributedSampler(
            range(num_samples),  # pyright: ignore[reportArgumentType]
            num_replicas=world_size,
            rank=rank,
            shuffle=shuffle,
            seed=5,
            drop_last=drop_last,
        )
        theirs.set_epoch(epoch)
        order = Random() if shuffle else Sequential()
        pieces = order.pieces(num_samples, 5, epoch)
        ours = shard(pieces, num_samples, rank, world_size, drop_last)
        assert [index for piece in ours for index in piece.tolist()] == list(theirs)


@settings(deadline=None)
@given(SMALL, st.integers(1, 9), st.integers(1, 20), st.booleans())
def test_dealing_piece_by_piece_is_dealing_the_whole(
    num_samples, world_size, block_size, drop_last
):
    order = Blocks(block_size=block_size, groups_together=1)
    whole = epoch_indices(order, num_samples, 0, 0)
    dealt = []
    for rank in range(world_size):
        in_one = shard([whole], num_samples, rank, world_size, drop_last)
        streamed = shard(order.pieces(num_samples, 0, 0), num_samples, rank, world_size, drop_last)
        mine = [index for piece in streamed for index in piece.tolist()]
        assert mine == [index for piece in in_one for index in piece.tolist()]
        dealt.append(mine)
    assert len({len(mine) for mine in dealt}) == 1
    times = Counter(index for mine in dealt for index in mine)
    if drop_last or num_samples % world_size == 0:
        assert set(times.values()) <= {1}  # disjoint
    if not drop_last:
        assert set(times) == set(range(num_samples))
        assert sum(times.values()) - num_samples < world_size


@pytest.fixture
def incomplete_job(prepared_job, tmp_path):
    saved(tmp_path, three=np.array([5, 100, 202]), weights=np.arange(203))

    def make(kind: str, *overrides: str):
        given = (one.format(folder=tmp_path) for one in INCOMPLETE[kind])
        return prepared_job(*given, "loader=np_memmap", "batch_size=32", *MYDATASET, *overrides)

    return make


@pytest.mark.parametrize("kind", ["half of them", "more draws than samples"])
def test_a_whole_trial_of_an_incomplete_order_passes_the_gate(incomplete_job, kind):
    job, prepared = incomplete_job(kind, "benchmark=traversal", "epochs=2")
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measured.samples == 2 * job.order.length(203)


@pytest.mark.parametrize("drop_last", ["false", "true"])
@pytest.mark.parametrize("kind", INCOMPLETE)
def test_the_gate_expects_what_an_incomplete_order_asks_for_and_no_more(
    incomplete_job, kind, drop_last
):
    job, prepared = incomplete_job(kind, "batch_size=3", f"drop_last={drop_last}")
    plan = job.plan(0)
    with job.loader.open(prepared, plan) as epochs:
        check_data(prepared, plan, epochs(4), epoch=4)
        first, *others = list(epochs(4))
        another = [first[0], (first[1] + 1) % 10]
        for wrong in (others, [first, first, *others], [another, *others]):
            with pytest.raises(Invalid):
                check_data(prepared, plan, wrong, epoch=4)
