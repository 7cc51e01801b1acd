"""A loader's state in the middle of an epoch gives the rest of it, whatever drew its order."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import re
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    WeightedRandomSampler,
)

from fastloop import Blocks, FastLoader


class Numbers(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Counting:
    """A sampler that has a state of its own: each time it begins one further on."""

    def __init__(self, count: int) -> None:
        self.count, self.first = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        first, self.first = self.first, self.first + 1
        return iter([(first + number) % self.count for number in range(self.count)])

    def state_dict(self) -> dict:
        return {"first": self.first}

    def load_state_dict(self, state: dict) -> None:
        self.first = state["first"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ORDERS = {
    "as they are": lambda count, seed: {},
    "shuffled": lambda count, seed: {"shuffle": True, "seed": seed},
    "generator": lambda count, seed: {"shuffle": True, "generator": seeded(seed)},
    "blocks": lambda count, seed: {"shuffle": Blocks(1 + count % 7, 2), "seed": seed},
    "blocks of a generator": lambda count, seed: {
        "shuffle": Blocks(1 + count % 7, 2),
        "generator": seeded(seed),
    },
    "random": lambda count, seed: {"sampler": RandomSampler(range(count), generator=seeded(seed))},
    "weighted": lambda count, seed: {
        "sampler": WeightedRandomSampler([1.0] * count, count, generator=seeded(seed))
    },
    "distributed": lambda count, seed: {"sampler": DistributedSampler(range(count), 2, seed % 2)},
    "counting": lambda count, seed: {"sampler": Counting(count)},
    "tensor": lambda count, seed: {"sampler": torch.arange(count).flip(0)},
    "batches": lambda count, seed: {
        "batch_sampler": BatchSampler(
            RandomSampler(range(count), generator=seeded(seed)), 1 + seed % 5, False
        )
    },
    "batches of counting": lambda count, seed: {
        "batch_sampler": BatchSampler(Counting(count), 1 + seed % 5, True)
    },
}


def batches(loader: FastLoader, count: int | None = None) -> list:
    return [batch.tolist() for batch in islice(loader, count)]


def joined(batches: list[list[int]]) -> list[int]:
    return [one for batch in batches for one in batch]


@settings(max_examples=150, deadline=None)
@given(
    order=st.sampled_from(sorted(ORDERS)),
    count=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    drop_last=st.booleans(),
    world_size=st.integers(1, 4),
    data=st.data(),
)
def test_the_rest_of_an_epoch_comes_exactly(order, count, batch_size, drop_last, world_size, data):
    source = data.draw(st.sampled_from([Numbers(count), torch.arange(count)]))

    def made(seed: int) -> FastLoader:
        given_order = ORDERS[order](count, seed)
        sizes = {"batch_size": batch_size, "drop_last": drop_last}
        if "batch_sampler" in given_order:
            sizes = {}
        elif "sampler" in given_order:
            sizes["rank"], sizes["world_size"] = 0, 1
        else:
            sizes["rank"], sizes["world_size"] = world_size - 1, world_size
        return FastLoader(source, num_threads=2, **sizes, **given_order)

    loader = made(5)
    for _ in range(data.draw(st.integers(0, 2))):  # epochs before it, one of them left early
        batches(loader, data.draw(st.one_of(st.none(), st.integers(0, 3))))
    fresh = pickle.loads(pickle.dumps(loader.state_dict()))
    is_left = fresh["epoch"] < loader.epoch
    running, taken = iter(loader), []
    for _ in range(data.draw(st.integers(0, len(loader)))):
        taken.append(next(running).tolist())
    state = copy.deepcopy(loader.state_dict())
    rest = [batch.tolist() for batch in running]
    assert len(taken) + len(rest) == len(loader)
    following = batches(loader)

    from_state = ("generator", "blocks of a generator", "random", "weighted")
    other = made(0 if order in from_state else 5)
    other.load_state_dict(state)
    assert pickle.dumps(other.state_dict()) == pickle.dumps(state)  # nothing has happened since
    assert batches(other) == rest
    assert batches(other) == following
    other.load_state_dict(fresh)
    if is_left:
        batches(other)  # the rest of that epoch
    assert batches(other) == taken + rest


@pytest.mark.parametrize("make", [RandomSampler, "batches"])
def test_torchs_global_generator_is_remembered_and_left_alone(make):
    sampler = RandomSampler(range(40))
    given_order = {"sampler": sampler, "batch_size": 4}
    if make == "batches":
        given_order = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}
    loader = FastLoader(torch.arange(40), **given_order)
    first, second = batches(loader), batches(loader)
    assert first != second
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), [batch.tolist() for batch in running]
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    loader.load_state_dict(state)
    assert batches(loader) == rest
    assert torch.equal(torch.rand(3), wanted)


def test_an_epoch_that_was_left_is_where_it_was_left_and_the_next_is_another():
    loader = FastLoader(torch.arange(30), 3, shuffle=True)
    left = batches(loader, 2)
    state = loader.state_dict()
    assert (state["epoch"], state["delivered"]) == (0, 2)
    following = batches(loader)
    assert following[:2] != left
    assert (loader.state_dict()["epoch"], loader.state_dict()["delivered"]) == (2, 0)
    loader.load_state_dict(state)
    loader.set_epoch(0)  # as a training script does at the start of each epoch
    assert sorted(joined(left + batches(loader))) == [*range(30)]
    assert batches(loader) == following
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert batches(loader) == following


@settings(max_examples=25, deadline=None)
@given(
    visits=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 200), st.booleans()),
        min_size=2,
        max_size=6,
    )
)
def test_an_epoch_is_that_of_its_number_whatever_was_drawn_ahead(visits):
    """visits: the epoch, the seed, how many batches are taken, and whether the loader is copied."""
    loader = FastLoader(torch.arange(600), 3, shuffle=True, num_threads=1)
    for epoch, seed, taken, copied in visits:
        loader.set_epoch(epoch)
        loader.seed = seed
        loader = pickle.loads(pickle.dumps(loader)) if copied else loader
        order = torch.randperm(600, generator=seeded(seed + epoch), dtype=torch.int32).tolist()
        assert joined(batches(loader, taken)) == order[: 3 * taken]
        assert joined(batches(loader)) == (
            torch.randperm(600, generator=seeded(seed + epoch + 1), dtype=torch.int32).tolist()
        )


@pytest.mark.parametrize(("num_threads", "hits", "misses"), [(1, 1, 3), (0, 0, 2)])
def test_threads_draw_the_next_order_while_an_epoch_goes_on(num_threads, hits, misses):
    loader = FastLoader(torch.arange(600), 3, shuffle=True, num_threads=num_threads)
    for _ in range(2):
        list(loader)
    found = loader._permute.cache_info()
    assert (found.hits, found.misses) == (hits, misses)


def test_set_epoch_is_the_samplers_too_and_nothing_else_tells_it():
    sampler = DistributedSampler(range(20), 2, 0, shuffle=True)
    loader = FastLoader(torch.arange(20), 4, sampler=sampler)
    sampler.set_epoch(7)
    assert joined(batches(loader)) == list(sampler)
    loader.set_epoch(3)
    assert sampler.epoch == 3


def test_a_state_of_another_loader_is_refused():
    state = FastLoader(torch.arange(4), shuffle=True, generator=seeded(0)).state_dict()
    loader = FastLoader(torch.arange(4), shuffle=True)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="another generator or sampler"):
        iter(loader)


def test_a_state_holds_the_settings_that_its_place_depends_on():
    ranks = {"rank": 1, "world_size": 2}
    loader = FastLoader(torch.arange(20), 3, Blocks(4, 2), seed=7, drop_last=True, **ranks)
    running = iter(loader)
    next(running)
    written = io.BytesIO()
    torch.save(loader.state_dict(), written)
    written.seek(0)
    assert torch.load(written, weights_only=True) == {
        "epoch": 0,
        "delivered": 1,
        "drawn_from": {},
        "settings": {
            "batch_size": 3,
            "drop_last": True,
            "num_samples": 20,
            "seed": 7,
            "shuffle": "Blocks(block_size=4, blocks_together=2)",
            "world_size": 2,
        },
    }
    loader.batch_size = 4  # from the next epoch on
    assert loader.state_dict()["settings"]["batch_size"] == 3


GIVEN = {"batch_size": 3, "shuffle": True, "seed": 0, "world_size": 2, "drop_last": False}
OTHERS = {
    "batch_size": None,
    "drop_last": True,
    "num_samples": 13,
    "seed": 1,
    "shuffle": Blocks(2),
    "world_size": 3,
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_a_loader_with_another_setting_is_refused(name):
    saved = FastLoader(torch.arange(12), **GIVEN)
    list(islice(saved, 1))
    other = {name: OTHERS[name]}
    count = other.pop("num_samples", 12)
    loader = FastLoader(torch.arange(count), **GIVEN | other)
    before, was = loader.state_dict(), getattr(saved, name)
    wanted = f"{name}={OTHERS[name]}: this state is of a loader with {name}={was}"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        loader.load_state_dict(saved.state_dict())
    assert loader.state_dict() == before
    state = saved.state_dict()
    state["settings"] = {one: value for one, value in state["settings"].items() if one != name}
    with pytest.raises(ValueError, match=f"^this state does not tell {name}, which is "):
        saved.load_state_dict(state)


def test_what_one_rank_saved_all_ranks_load():
    first, second = (FastLoader(torch.arange(12), rank=rank, **GIVEN) for rank in range(2))
    whole = batches(second)
    batches(first, 1)
    second.load_state_dict(first.state_dict())
    assert batches(second) == whole[1:]


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(0, 40),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    world_size=st.integers(1, 60),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_len_is_what_is_delivered_to_every_rank(count, batch_size, world_size, drop_last, shuffle):
    sizes = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    delivered: list[int] = []
    for rank in range(world_size):
        loader = FastLoader(
            torch.arange(count), shuffle=shuffle, rank=rank, world_size=world_size, **sizes
        )
        found = batches(loader)
        assert len(found) == len(loader)
        delivered += joined(found) if batch_size else found
    if not sizes["drop_last"]:
        assert set(delivered) == set(range(count))
        assert len(delivered) == -(-count // world_size) * world_size


def delivered_there(loader: FastLoader) -> list:
    return batches(loader)


def test_a_loader_travels_and_its_maps_are_mapped_again(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(300_000))
    mapped = np.load(path, mmap_mode="r")
    sampler = RandomSampler(range(300_000), num_samples=50, generator=seeded(1))
    loader = FastLoader(mapped, 5, sampler=sampler)
    running = iter(loader)
    next(running)
    pickled = pickle.dumps(loader)
    assert len(pickled) < 100_000
    rest = [batch.tolist() for batch in running]
    copied = pickle.loads(pickled)
    assert isinstance(copied.source, np.memmap)
    copied.load_state_dict(copied.state_dict())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(delivered_there, (copied,)) == rest
    part = pickle.loads(pickle.dumps(FastLoader(mapped[5:9], 4)))
    assert batches(part) == [[5, 6, 7, 8]]
