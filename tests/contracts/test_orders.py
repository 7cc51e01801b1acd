"""Contract of every order in conf/order, and of sharding an order among ranks."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from options import MYDATASET, compose_job, options
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.distributed import DistributedSampler

from fastloop.config.messages import ConfigError
from fastloop.core.index_batches import epoch_indices
from fastloop.core.loading_settings import LoadingSettings
from fastloop.core.plan import Plan
from fastloop.core.protocols import LengthAwareOrder, RandpermOrder
from fastloop.core.seeds import epoch_seed
from fastloop.core.sharding import shard
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Invalid, Unsupported
from fastloop.data.same_data import check_data
from fastloop.fastloader import FastLoader
from fastloop.options.loader.fastloop import fastloader_epochs
from fastloop.options.order.blocks import BlockOrder
from fastloop.options.order.random import RandomOrder
from fastloop.options.order.sequential import SequentialOrder
from fastloop.trial.timed_trial import run_trial

MANY = 10**9
SMALL = st.integers(1, 70)
INCOMPLETE = {
    "half of them": ("order=subset", "order.fraction=0.5"),
    "three chosen indices": (
        "order=subset",
        "order.fraction=null",
        "order.indices={folder}/three.npy",
    ),
    "as many draws as samples": ("order=weighted",),
    "more draws than samples": ("order=weighted", "order.num_samples=450"),
    "weighted draws": ("order=weighted", "order.weights={folder}/weights.npy"),
}


class LargestTensor(TorchDispatchMode):
    """Recorder of the size in bytes of the largest tensor that an operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.nbytes)
        return result


def order_of(*overrides: str):
    """The order; one that groups samples by length gets lengths of 3000 samples."""
    order = compose_job(*overrides).order
    if not isinstance(order, LengthAwareOrder):
        return order
    with pytest.raises(Unsupported, match=r"lengths of the samples"):
        list(order.pieces(3000, 0, 0))
    return order.with_lengths(np.arange(3000) % 7)


def save_arrays(folder, **arrays) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize("order", options("order"))
def test_order_is_complete_and_reproducible_by_seed_and_epoch(order):
    option = order_of(f"order={order}")
    first = epoch_indices(option, 3000, 3, 5)
    assert first.dtype == torch.int64
    assert len(first) == option.length(3000)
    assert not option.complete or np.array_equal(np.sort(first.numpy()), np.arange(3000))
    assert torch.equal(first, epoch_indices(option, 3000, 3, 5))


@pytest.mark.parametrize("order", options("order"))
def test_randperm_order_equals_torchs_permutation_of_seed_and_epoch(order):
    option = order_of(f"order={order}")
    assert isinstance(option, RandpermOrder) or order != "random"
    if not isinstance(option, RandpermOrder):
        return
    indices = epoch_indices(option, 3000, 3, 5)
    generator = torch.Generator().manual_seed(epoch_seed(3, 5))
    assert torch.equal(indices, torch.randperm(3000, generator=generator))


def test_fastloader_shuffles_itself_only_for_torchs_permutation():
    rows = torch.arange(50)
    for order, shuffles in (("random", True), ("blocks", False)):
        job = compose_job(f"order={order}", "batch_size=7", "seed=3")
        plan = Plan(loading=LoadingSettings(batch_size=7), seed=3, order=job.order)
        loader = FastLoader(rows, 7, seed=3)
        epochs = fastloader_epochs(loader, plan)
        assert loader.shuffle is shuffles
        for epoch in (2, 0):
            indices = torch.cat(list(epochs(epoch)))
            assert torch.equal(indices, epoch_indices(job.order, 50, 3, epoch))


@pytest.mark.parametrize("order", [name for name in options("order") if name != "sequential"])
def test_order_changes_with_seed_and_epoch(order):
    option = order_of(f"order={order}")
    orders = {
        tuple(epoch_indices(option, 3000, seed, epoch).tolist())
        for seed, epoch in [(0, 0), (0, 1), (9, 0)]
    }
    assert len(orders) == 3


@given(SMALL, st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
def test_block_order_is_complete_and_keeps_groups_together(
    num_samples, block_size, together, epoch
):
    order = BlockOrder(block_size=block_size, groups_together=together)
    indices = epoch_indices(order, num_samples, 1, epoch).tolist()
    assert sorted(indices) == list(range(num_samples))
    pieces = [piece.tolist() for piece in order.pieces(num_samples, 1, epoch)]
    groups = [{index // block_size for index in piece} for piece in pieces]
    assert all(len(group) <= together for group in groups)
    assert sum(map(len, groups)) == -(-num_samples // block_size)


def test_block_order_shuffles_groups_and_the_samples_inside():
    indices = epoch_indices(BlockOrder(block_size=100, groups_together=1), 1000, 0, 0).view(10, 100)
    groups = (indices // 100)[:, 0].tolist()
    assert groups != sorted(groups)
    assert all(group.tolist() != sorted(group.tolist()) for group in indices)


@pytest.mark.parametrize(
    "order",
    [SequentialOrder(), BlockOrder(block_size=1024, groups_together=8)],
    ids=["sequential", "blocks"],
)
@pytest.mark.parametrize("is_sharded", [False, True], ids=["whole", "sharded"])
def test_order_of_a_billion_indices_allocates_little_memory(order, is_sharded):
    with LargestTensor() as recorder:
        pieces = order.pieces(MANY, 0, 0)
        first = list(islice(shard(pieces, 3, 8) if is_sharded else pieces, 20))
    assert min(int(piece.min()) for piece in first) >= 0
    assert max(int(piece.max()) for piece in first) < MANY
    assert recorder.largest <= 8 << 20  # all indices would take 8 GB


def test_largest_tensor_includes_the_indices_of_a_random_order():
    with LargestTensor() as recorder:
        epoch_indices(RandomOrder(), 10**6, 0, 0)
    assert recorder.largest >= 8 * 10**6


def test_subset_is_the_same_within_a_trial_and_differs_between_trials():
    order = order_of("order=subset", "order.fraction=0.3")
    epochs = [epoch_indices(order, 100, 0, epoch).tolist() for epoch in range(3)]
    assert len(epochs[0]) == len(set(epochs[0])) == order.length(100) == 30
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert set(epoch_indices(order, 100, 10_000, 0).tolist()) != set(epochs[0])


def test_subset_order_uses_exactly_the_indices_of_its_file(tmp_path):
    save_arrays(tmp_path, chosen=np.array([7, 2, 99, 2]))
    order = order_of("order=subset", "order.fraction=null", f"order.indices={tmp_path}/chosen.npy")
    assert sorted(epoch_indices(order, 100, 0, 0).tolist()) == [2, 2, 7, 99]
    assert order.length(100) == 4


def test_subset_of_a_tiny_fraction_has_one_sample():
    assert order_of("order=subset", "order.fraction=0.001").length(10) == 1


def test_weighted_order_draws_in_proportion_to_weights(tmp_path):
    save_arrays(tmp_path, weights=np.array([0, 1, 0, 3, 0]))
    override = f"order.weights={tmp_path}/weights.npy"
    order = order_of("order=weighted", override, "order.num_samples=40000")
    counts = Counter(epoch_indices(order, 5, 0, 0).tolist())
    assert set(counts) == {1, 3}
    assert counts[3] / 40_000 == pytest.approx(0.75, abs=0.01)  # four standard deviations


def test_weighted_order_without_weights_is_uniform_with_replacement():
    counts = Counter(epoch_indices(order_of("order=weighted"), 1000, 0, 0).tolist())
    assert sum(counts.values()) == 1000
    assert len(counts) == pytest.approx(1000 * (1 - np.exp(-1)), abs=50)


def test_weighted_order_yields_pieces(monkeypatch):
    monkeypatch.setattr("fastloop.options.order.weighted.PIECE", 64)
    pieces = list(order_of("order=weighted").pieces(150, 0, 0))
    assert [len(piece) for piece in pieces] == [64, 64, 22]


@pytest.mark.parametrize(
    ("order", "array", "message"),
    [
        ("subset", np.array([0.5, 1]), "indices have to be integers, not float64"),
        ("subset", np.array([3, 100]), "index 100 is not in 0 to 99"),
        ("subset", np.array([-1, 3]), "index -1 is not in 0 to 99"),
        ("subset", np.zeros((2, 2), int), r"one dimension .* got \[2, 2\]"),
        ("subset", np.zeros(0, int), r"at least one value, got \[0\]"),
        ("weighted", np.ones(99), "99 weights for 100 samples"),
        ("weighted", np.full(100, -1.0), "finite and not negative"),
        ("weighted", np.full(100, np.nan), "finite and not negative"),
        ("weighted", np.full(100, "a"), "finite and not negative"),
        ("weighted", np.zeros(100), "every weight is 0"),
    ],
)
def test_order_names_a_file_with_unusable_values(tmp_path, order, array, message):
    save_arrays(tmp_path, values=array)
    setting = (
        ["order.weights="] if order == "weighted" else ["order.fraction=null", "order.indices="]
    )
    option = order_of(f"order={order}", *setting[:-1], f"{setting[-1]}{tmp_path}/values.npy")
    with pytest.raises(BadData, match=f"values.npy: .*{message}"):
        epoch_indices(option, 100, 0, 0)


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00"])
def test_order_names_a_file_that_is_no_npy(tmp_path, content):
    (tmp_path / "values.npy").write_bytes(content)
    option = order_of("order=weighted", f"order.weights={tmp_path}/values.npy")
    with pytest.raises(BadData, match=r"values\.npy: not a \.npy file"):
        epoch_indices(option, 100, 0, 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "order=weighted order.weights=nowhere.npy",
            "order.weights=nowhere.npy: allowed: the path of a file",
        ),
        ("order=subset order.fraction=0", "order.fraction=0: allowed: more than 0"),
        ("order=subset order.fraction=1.5", "order.fraction=1.5: allowed: at most 1"),
        ("order=subset order.fraction=null", "set one of them, the other to null"),
        ("order=blocks order.block_size=0", "order.block_size=0: allowed: 1 or more"),
    ],
)
def test_order_rejects_an_invalid_setting_in_one_line(overrides, message):
    with pytest.raises(ConfigError) as error:
        order_of(*overrides.split())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(SMALL, st.integers(1, 9), st.booleans(), st.integers(0, 2))
def test_shard_equals_torchs_distributed_sampler(num_samples, world_size, shuffle, epoch):
    for rank in range(world_size):
        sampler = DistributedSampler(
            range(num_samples),  # pyright: ignore[reportArgumentType]
            num_replicas=world_size,
            rank=rank,
            shuffle=shuffle,
            seed=epoch_seed(5, epoch),
        )
        order = RandomOrder() if shuffle else SequentialOrder()
        pieces = order.pieces(num_samples, 5, epoch)
        parts = shard(pieces, rank, world_size)
        assert [index for piece in parts for index in piece.tolist()] == list(sampler)


@given(SMALL, st.integers(1, 9), st.integers(1, 20))
def test_shard_of_pieces_equals_shard_of_the_whole(num_samples, world_size, block_size):
    order = BlockOrder(block_size=block_size, groups_together=1)
    whole = epoch_indices(order, num_samples, 0, 0)
    shards = []
    for rank in range(world_size):
        whole_shard = shard([whole], rank, world_size)
        streamed = shard(order.pieces(num_samples, 0, 0), rank, world_size)
        indices = [index for piece in streamed for index in piece.tolist()]
        assert indices == [index for piece in whole_shard for index in piece.tolist()]
        shards.append(indices)
    assert len({len(indices) for indices in shards}) == 1
    counts = Counter(index for indices in shards for index in indices)
    if num_samples % world_size == 0:
        assert set(counts.values()) == {1}  # disjoint
    assert set(counts) == set(range(num_samples))
    assert sum(counts.values()) - num_samples < world_size


@pytest.fixture
def incomplete_job(prepared_job, tmp_path):
    save_arrays(tmp_path, three=np.array([5, 100, 202]), weights=np.arange(203))

    def make(kind: str, *overrides: str):
        order_overrides = (override.format(folder=tmp_path) for override in INCOMPLETE[kind])
        return prepared_job(
            *order_overrides, "loader=np_memmap", "batch_size=32", *MYDATASET, *overrides
        )

    return make


@pytest.mark.parametrize("kind", ["half of them", "more draws than samples"])
def test_trial_of_an_incomplete_order_passes_the_gate(incomplete_job, kind):
    job, prepared = incomplete_job(kind, "benchmark=traversal", "epochs=2")
    measurement = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measurement.samples == 2 * job.order.length(203)


@pytest.mark.parametrize("drop_last", ["false", "true"])
@pytest.mark.parametrize("kind", INCOMPLETE)
def test_gate_expects_exactly_the_samples_of_an_incomplete_order(incomplete_job, kind, drop_last):
    job, prepared = incomplete_job(kind, "batch_size=3", f"drop_last={drop_last}")
    plan = job.plan(0)
    with job.loader.open(prepared, plan) as epochs:
        check_data(prepared, plan, epochs(4), epoch=4)
        first, *rest = list(epochs(4))
        relabelled = [first[0], (first[1] + 1) % 10]
        for batches in (rest, [first, first, *rest], [relabelled, *rest]):
            with pytest.raises(Invalid):
                check_data(prepared, plan, batches, epoch=4)
