"""A state saved during an epoch resumes that epoch exactly, for every kind of order."""

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
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    WeightedRandomSampler,
)

from fastloop import Blocks, FastLoader
from fastloop.core.seeds import epoch_seed


class Numbers(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class CountingSampler:
    """A sampler with a state: each epoch begins one index further."""

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


def seeded_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ORDERS = {
    "sequential": lambda count, seed: {},
    "shuffled": lambda count, seed: {"shuffle": True, "seed": seed},
    "generator": lambda count, seed: {"shuffle": True, "generator": seeded_generator(seed)},
    "blocks": lambda count, seed: {"shuffle": Blocks(1 + count % 7, 2), "seed": seed},
    "blocks of a generator": lambda count, seed: {
        "shuffle": Blocks(1 + count % 7, 2),
        "generator": seeded_generator(seed),
    },
    "random": lambda count, seed: {
        "sampler": RandomSampler(range(count), generator=seeded_generator(seed))
    },
    "weighted": lambda count, seed: {
        "sampler": WeightedRandomSampler([1.0] * count, count, generator=seeded_generator(seed))
    },
    "distributed": lambda count, seed: {"sampler": DistributedSampler(range(count), 2, seed % 2)},
    "counting": lambda count, seed: {"sampler": CountingSampler(count)},
    "tensor": lambda count, seed: {"sampler": torch.arange(count).flip(0)},
    "batches": lambda count, seed: {
        "batch_sampler": BatchSampler(
            RandomSampler(range(count), generator=seeded_generator(seed)), 1 + seed % 5, False
        )
    },
    "batches of counting": lambda count, seed: {
        "batch_sampler": BatchSampler(CountingSampler(count), 1 + seed % 5, True)
    },
}


def batches(loader: FastLoader, count: int | None = None) -> list:
    return [batch.tolist() for batch in islice(loader, count)]


def flatten(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


@given(
    order=st.sampled_from(sorted(ORDERS)),
    count=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    drop_last=st.booleans(),
    world_size=st.integers(1, 4),
    data=st.data(),
)
def test_saved_state_resumes_every_kind_of_order(
    order, count, batch_size, drop_last, world_size, data
):
    source = data.draw(st.sampled_from([Numbers(count), torch.arange(count)]))

    def make_loader(seed: int) -> FastLoader:
        order_settings = ORDERS[order](count, seed)
        sizes = {"batch_size": batch_size, "drop_last": drop_last}
        if "batch_sampler" in order_settings:
            sizes = {}
        elif "sampler" in order_settings:
            sizes["rank"], sizes["world_size"] = 0, 1
        else:
            sizes["rank"], sizes["world_size"] = world_size - 1, world_size
        return FastLoader(source, num_threads=2, **sizes, **order_settings)

    loader = make_loader(5)
    for _ in range(data.draw(st.integers(0, 2))):  # earlier epochs, some of them abandoned
        batches(loader, data.draw(st.one_of(st.none(), st.integers(0, 3))))
    fresh = pickle.loads(pickle.dumps(loader.state_dict()))
    is_unfinished = fresh["epoch"] < loader.epoch
    running, taken = iter(loader), []
    for _ in range(data.draw(st.integers(0, len(loader)))):
        taken.append(next(running).tolist())
    state = copy.deepcopy(loader.state_dict())
    rest = [batch.tolist() for batch in running]
    assert len(taken) + len(rest) == len(loader)
    following = batches(loader)

    from_state = ("generator", "blocks of a generator", "random", "weighted")
    other = make_loader(0 if order in from_state else 5)
    other.load_state_dict(state)
    assert pickle.dumps(other.state_dict()) == pickle.dumps(state)  # loading alone changes nothing
    assert batches(other) == rest
    assert batches(other) == following
    other.load_state_dict(fresh)
    draws = "random", "weighted", "batches", "generator", "blocks of a generator"
    if is_unfinished and order in draws:
        return  # their generator is elsewhere where the epoch before was read only in part
    if is_unfinished:
        batches(other)  # the rest of that epoch
    assert batches(other) == taken + rest


@pytest.mark.parametrize("sampling", [RandomSampler, "batches"])
def test_state_holds_the_global_generator_and_leaves_it_unchanged(sampling):
    sampler = RandomSampler(range(40))
    settings = {"sampler": sampler, "batch_size": 4}
    if sampling == "batches":
        settings = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}
    loader = FastLoader(torch.arange(40), **settings)
    first, second = batches(loader), batches(loader)
    assert first != second
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), [batch.tolist() for batch in running]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    loader.load_state_dict(state)
    assert batches(loader) == rest
    assert torch.equal(torch.rand(3), expected)


def test_abandoned_epoch_resumes_and_the_next_one_differs():
    loader = FastLoader(torch.arange(30), 3, shuffle=True, seed=0)
    taken = batches(loader, 2)
    state = loader.state_dict()
    assert (state["epoch"], state["delivered"]) == (0, 2)
    following = batches(loader)
    assert following[:2] != taken
    assert (loader.state_dict()["epoch"], loader.state_dict()["delivered"]) == (2, 0)
    loader.load_state_dict(state)
    loader.set_epoch(0)  # as a training script does at the start of each epoch
    assert sorted(flatten(taken + batches(loader))) == [*range(30)]
    assert batches(loader) == following
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert batches(loader) == following


@given(
    visits=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 200), st.booleans()),
        min_size=2,
        max_size=6,
    )
)
def test_order_depends_on_the_epoch_number_not_on_prefetched_orders(visits):
    """visits: epoch, seed, number of batches taken, and whether the loader is copied."""
    loader = FastLoader(torch.arange(600), 3, shuffle=True, num_threads=1)
    for epoch, seed, taken, copied in visits:
        loader.set_epoch(epoch)
        loader.seed = seed
        loader = pickle.loads(pickle.dumps(loader)) if copied else loader
        order = torch.randperm(
            600, generator=seeded_generator(epoch_seed(seed, epoch)), dtype=torch.int32
        ).tolist()
        assert flatten(batches(loader, taken)) == order[: 3 * taken]
        assert flatten(batches(loader)) == (
            torch.randperm(
                600, generator=seeded_generator(epoch_seed(seed, epoch + 1)), dtype=torch.int32
            ).tolist()
        )


def test_only_set_epoch_sets_the_samplers_epoch():
    sampler = DistributedSampler(range(20), 2, 0, shuffle=True)
    loader = FastLoader(torch.arange(20), 4, sampler=sampler)
    sampler.set_epoch(7)
    assert flatten(batches(loader)) == list(sampler)
    loader.set_epoch(3)
    assert sampler.epoch == 3


def test_state_of_a_loader_with_another_generator_is_rejected():
    state = FastLoader(torch.arange(4), shuffle=True, generator=seeded_generator(0)).state_dict()
    loader = FastLoader(torch.arange(4), shuffle=True)
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="a generator or samplers that this loader lacks"):
        iter(loader)


def test_state_holds_the_settings_that_determine_its_position():
    ranks = {"rank": 1, "world_size": 2}
    loader = FastLoader(torch.arange(20), 3, Blocks(4, 2), seed=7, drop_last=True, **ranks)
    running = iter(loader)
    next(running)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == {
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


SETTINGS = {
    "batch_size": 3,
    "shuffle": True,
    "seed": 0,
    "rank": 0,
    "world_size": 2,
    "drop_last": False,
}
OTHER_SETTINGS = {
    "batch_size": None,
    "drop_last": True,
    "num_samples": 13,
    "seed": 1,
    "shuffle": Blocks(2),
    "world_size": 3,
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_state_of_a_loader_with_other_settings_is_rejected(name):
    saved = FastLoader(torch.arange(12), **SETTINGS)
    list(islice(saved, 1))
    other = {name: OTHER_SETTINGS[name]}
    count = other.pop("num_samples", 12)
    loader = FastLoader(torch.arange(count), **SETTINGS | other)
    before, value = loader.state_dict(), getattr(saved, name)
    message = f"{name}={OTHER_SETTINGS[name]}: this state is of a loader with {name}={value}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        loader.load_state_dict(saved.state_dict())
    assert loader.state_dict() == before
    state = saved.state_dict()
    state["settings"] = {key: setting for key, setting in state["settings"].items() if key != name}
    with pytest.raises(ValueError, match=f"^{name}=.*: this state does not contain {name}$"):
        saved.load_state_dict(state)


@pytest.mark.parametrize("state", [None, 5, "text", []])
def test_what_is_no_state_is_rejected(state):
    with pytest.raises(TypeError, match=r"^state=.*: allowed is what state_dict\(\) has returned$"):
        FastLoader(torch.arange(9)).load_state_dict(state)


@pytest.mark.parametrize("key", ["epoch", "delivered", "drawn_from"])
@pytest.mark.parametrize("value", [-1, "x", None])
def test_state_without_a_position_is_rejected(key, value):
    loader = FastLoader(torch.arange(9))
    with pytest.raises(ValueError, match=rf"^state\['{key}'\]={value!r}: allowed is "):
        loader.load_state_dict(loader.state_dict() | {key: value})
    assert len(list(loader)) == 9


def test_every_rank_loads_the_state_of_one_rank():
    first, second = (FastLoader(torch.arange(12), **SETTINGS | {"rank": rank}) for rank in range(2))
    expected = batches(second)
    batches(first, 1)
    second.load_state_dict(first.state_dict())
    assert batches(second) == expected[1:]


@given(
    count=st.integers(0, 40),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    world_size=st.integers(1, 60),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_len_equals_the_batches_of_every_rank(count, batch_size, world_size, drop_last, shuffle):
    sizes = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    delivered: list[int] = []
    for rank in range(world_size):
        loader = FastLoader(
            torch.arange(count), shuffle=shuffle, rank=rank, world_size=world_size, **sizes
        )
        epoch = batches(loader)
        assert len(epoch) == len(loader)
        delivered += flatten(epoch) if batch_size else epoch
    if not sizes["drop_last"]:
        assert set(delivered) == set(range(count))
        assert len(delivered) == -(-count // world_size) * world_size


def deliver_in_process(loader: FastLoader) -> list:
    return batches(loader)


@pytest.mark.heavy
def test_pickled_loader_maps_its_files_again(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(300_000))
    mapped = np.load(path, mmap_mode="r")
    sampler = RandomSampler(range(300_000), num_samples=50, generator=seeded_generator(1))
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
        assert pool.apply(deliver_in_process, (copied,)) == rest
    part = pickle.loads(pickle.dumps(FastLoader(mapped[5:9], 4)))
    assert batches(part) == [[5, 6, 7, 8]]


def test_integers_of_numpy_are_integers():
    plain = FastLoader(torch.arange(20), 3, shuffle=True, seed=5, rank=1, world_size=2)
    numbers = {name: np.int64(getattr(plain, name)) for name in ("seed", "rank", "world_size")}
    loader = FastLoader(torch.arange(20), 3, shuffle=True, **numbers)
    loader.set_epoch(np.int64(2))
    plain.set_epoch(2)
    assert loader.epoch == 2
    for _ in range(2):
        running = iter(loader)
        first, expected = next(running), torch.cat(list(plain))
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == loader.state_dict()
        assert torch.cat([first, *running]).tolist() == expected.tolist()


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["tensor", "array"])
def test_states_of_other_formats_stay_as_they_are(make):
    loader = FastLoader(torch.arange(20), 3, transform=torch.neg)
    list(islice(loader, 2))
    state = loader.state_dict()
    state["delivered"] = make(state["delivered"])
    loader.load_state_dict(state)
    assert torch.cat(list(loader)).tolist() == [*range(-6, -20, -1)]
    assert int(state["delivered"]) == 2
