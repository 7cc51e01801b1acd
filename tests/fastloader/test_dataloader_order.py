"""A FastLoader in DataLoader's place: the same batches and the same draws at the same moments."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fastloop import Blocks, FastLoader, open_store, write_store
from fastloop.fastloader.order import MAX_RANDPERM


class Numbers(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class DrawnAsAsked:
    """Draws each index, or batch of two, from torch's global generator when it is asked for it."""

    def __init__(self, count: int, is_batched: bool = False) -> None:
        self.count, self.is_batched = count, is_batched

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.count):
            drawn = torch.randint(self.count, (2,)).tolist()
            yield drawn if self.is_batched else drawn[0]

    def __len__(self) -> int:
        return self.count


class DrawnAtOnce(DrawnAsAsked):
    """Draws all of them when it is iterated over."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__()))


SAMPLERS = {
    "random": lambda count, g: RandomSampler(range(count), generator=g),
    "part": lambda count, g: RandomSampler(range(count), num_samples=count // 2 + 1, generator=g),
    "first half": lambda count, g: RandomSampler(range(-(-count // 2)), generator=g),
    "twice": lambda count, g: RandomSampler(range(count), num_samples=2 * count, generator=g),
    "replaced": lambda count, g: RandomSampler(
        range(count), replacement=True, num_samples=count + 40, generator=g
    ),
    "subset": lambda count, g: SubsetRandomSampler(range(count), generator=g),
    "weighted": lambda count, g: WeightedRandomSampler([1.0] * count, count, generator=g),
    "distributed": lambda count, g: DistributedSampler(range(count), 2, 1),
    "as asked": lambda count, g: DrawnAsAsked(count),
    "at once": lambda count, g: DrawnAtOnce(count),
    "list": lambda count, g: list(range(count))[::-1],
    "range": lambda count, g: range(count),
}
SOURCES = {
    "rows": torch.arange,
    "tensors": lambda count: TensorDataset(torch.arange(count)),
    "array": np.arange,
    "dataset": Numbers,
}


def plain(batch: Any) -> Any:
    if isinstance(batch, list):
        return [plain(part) for part in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


@st.composite
def orders(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of an order; generators and samplers are made by each loader for itself."""
    kind = draw(st.sampled_from(["plain", "sampler", "batch_sampler", "batch_sampler_of_own"]))
    drawn: dict[str, Any] = {"kind": kind, "count": draw(st.integers(1, 40))}
    drawn["own"] = draw(st.sampled_from([None, "loader", "sampler", "both"]))
    drawn["batch_size"] = draw(st.sampled_from([1, 2, 3, 5, 8, 60, None]))
    drawn["drop_last"] = draw(st.booleans()) and drawn["batch_size"] is not None
    drawn["shuffle"] = draw(st.booleans())
    drawn["sampler"] = draw(st.sampled_from(sorted(SAMPLERS)))
    drawn["at once"] = draw(st.booleans())
    return drawn


def settings_of(order: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    count, own = order["count"], order["own"]
    settings: dict[str, Any] = {"generator": generator if own in ("loader", "both") else None}
    sampler = SAMPLERS[order["sampler"]](count, generator if own in ("sampler", "both") else None)
    sizes = {"batch_size": order["batch_size"], "drop_last": order["drop_last"]}
    if order["kind"] == "batch_sampler_of_own":
        kind = DrawnAtOnce if order["at once"] else DrawnAsAsked
        return settings | {"batch_sampler": kind(count, is_batched=True)}
    if order["kind"] == "batch_sampler":
        size = order["batch_size"] or 1
        return settings | {"batch_sampler": BatchSampler(sampler, size, order["drop_last"])}
    if order["kind"] == "sampler":
        return settings | sizes | {"sampler": sampler}
    return settings | sizes | {"shuffle": order["shuffle"]}


def trace(make_loader: Any, order: dict[str, Any], visits: list[tuple[int | None, bool]]) -> list:
    """What a program sees that draws after each step, as a step with dropout does.

    visits: for each epoch the number of batches taken (None: all), and whether the generator's
    state at the end of an epoch is asked for.
    """
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    loader = make_loader(settings_of(order, generator))
    seen: list[Any] = []
    for taken, is_nested in visits:
        batches = iter(loader)
        seen.append(torch.rand(1).item())
        others = iter(loader) if is_nested else None
        for batch in islice(batches, taken):
            seen.append((plain(batch), torch.rand(1).item(), generator.get_state().sum().item()))
            if others is not None and (other := next(others, None)) is not None:
                seen.append(plain(other))
        del batches, others
        seen.append((torch.rand(1).item(), torch.rand(1, generator=generator).item()))
    return seen


VISITS = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 4)), st.booleans()), min_size=1, max_size=3
)


@pytest.mark.parametrize("source", SOURCES)
@given(order=orders(), visits=VISITS, num_threads=st.sampled_from([None, 0]))
def test_batches_and_draws_are_those_of_dataloader(source, order, visits, num_threads):
    def fast(settings: dict[str, Any]) -> FastLoader:
        return FastLoader(SOURCES[source](order["count"]), num_threads=num_threads, **settings)

    def torchs(settings: dict[str, Any]) -> DataLoader:
        samples: Any = SOURCES[source](order["count"])
        return DataLoader(samples, **settings)

    assert trace(fast, order, visits) == trace(torchs, order, visits)


@pytest.mark.heavy
@pytest.mark.parametrize("source", ["rows", "dataset"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.filterwarnings("ignore:persistent_workers")  # rows have none
@given(data=st.data())
@hypothesis.settings(max_examples=3)
def test_workers_draw_ahead_as_those_of_dataloader(source, persistent, data):
    order, visits = data.draw(orders()), data.draw(VISITS)
    settings = {
        "num_workers": data.draw(st.integers(1, 2)),
        "prefetch_factor": data.draw(st.sampled_from([None, 1, 3])),
        "persistent_workers": persistent,
    }
    visits = [(taken, is_nested and not persistent) for taken, is_nested in visits]

    def make(kind: Any) -> Any:
        return lambda of_order: kind(SOURCES[source](order["count"]), **of_order, **settings)

    assert trace(make(FastLoader), order, visits) == trace(make(DataLoader), order, visits)


@pytest.mark.parametrize("count", [2, 4, 5])
def test_a_short_epoch_ends_its_sampler_before_a_second_one_begins(count):
    """Workers ask for 4 batches at once. Of 2 samples this is all, and RandomSampler draws again at
    its end: in iter(), before the next epoch draws."""
    seen = []
    for kind in (FastLoader, DataLoader):
        generator = torch.Generator().manual_seed(4)
        loader = kind(Numbers(count), shuffle=True, generator=generator, num_workers=2)
        pairs = zip(loader, loader, strict=True)
        seen.append([(one.item(), other.item()) for one, other in pairs])
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore:persistent_workers")  # rows have none
@pytest.mark.parametrize("persistent", [False, True])
def test_sampler_is_opened_as_often_as_by_dataloader(persistent):
    opened = []
    for kind in (FastLoader, DataLoader):
        torch.manual_seed(3)
        loader = kind(
            torch.arange(6),
            batch_sampler=DrawnAtOnce(2, is_batched=True),
            num_workers=1,
            persistent_workers=persistent,
        )
        opened.append([torch.rand(1).item() for _ in range(3) for _ in [*loader]])
    assert opened[0] == opened[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterable_dataset_draws_its_base_seed_as_dataloader(num_workers):
    seen = []
    for kind in (FastLoader, DataLoader):
        torch.manual_seed(1)
        loader = kind(Stream(7), 3, num_workers=num_workers)
        taken = sorted(number for batch in loader for number in batch.tolist())
        seen.append((taken, torch.rand(1).item()))
    assert seen[0] == seen[1]


def losses(kind: Any, samples: Any, settings: dict[str, Any]) -> list[float]:
    """What a small model with dropout loses in each step of three epochs."""
    torch.manual_seed(7)
    loader = kind(samples, batch_size=8, shuffle=True, **settings)
    model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Dropout(), torch.nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for _ in range(3):
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    return seen


class Pairs(Dataset):
    """Rows by code of Python."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_import_changes_no_loss(tmp_path, num_workers):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 5, generator=generator)
    pair = inputs, inputs.sum(1, keepdim=True)
    store = open_store(write_store(Pairs(*pair), tmp_path / "rows"))
    workers = {"num_workers": num_workers}
    expected = losses(DataLoader, Pairs(*pair), workers)
    assert len(set(expected)) > 20
    for samples in (pair, TensorDataset(*pair), Pairs(*pair), store):
        assert losses(FastLoader, samples, workers) == expected
    by_python = {"transform": lambda batch: batch}
    assert losses(FastLoader, pair, workers | by_python) == expected


@pytest.mark.parametrize("source", ["rows", "dataset"])
@given(data=st.data())
def test_state_at_any_moment_resumes_the_order_and_the_draws(source, data):
    order = data.draw(orders())
    order["sampler"] = data.draw(st.sampled_from(["random", "subset", "weighted", "list"]))
    if order["kind"].startswith("batch_sampler"):
        order["kind"] = "sampler"
    if order["own"] in ("sampler", "both") and order["kind"] == "sampler":
        order["own"] = "loader"  # a generator that the sampler has alone is its own state

    def make() -> FastLoader:
        settings = settings_of(order, torch.Generator().manual_seed(4))
        return FastLoader(SOURCES[source](order["count"]), **settings)

    torch.manual_seed(data.draw(st.integers(0, 9)))
    loader = make()
    if data.draw(st.booleans()):
        list(loader)
    moment = data.draw(st.sampled_from(["before", "begun", "within"]))
    running = iter(loader) if moment != "before" else None
    taken = min(data.draw(st.integers(1, 3)), len(loader)) if moment == "within" else 0
    for _ in islice(running or (), taken):
        pass
    state, numbers = pickle.loads(pickle.dumps(loader.state_dict())), torch.get_rng_state()
    rest = [plain(batch) for batch in (loader if running is None else running)]
    drawn = torch.rand(1).item()

    other = make()
    torch.manual_seed(99)
    other.load_state_dict(state)
    assert [plain(batch) for batch in other] == rest
    other.load_state_dict(state)
    torch.set_rng_state(numbers)
    assert [plain(batch) for batch in other] == rest
    if order["kind"] == "plain":
        assert torch.rand(1).item() == drawn


def test_beyond_the_largest_permutation_the_lazy_one_is_seeded_by_the_same_draw():
    rows = torch.arange(MAX_RANDPERM + 1)
    seen = []
    for kind in (FastLoader, FastLoader, DataLoader):
        torch.manual_seed(2)
        batches = iter(kind(rows, 1000, shuffle=True))
        seen.append((next(batches)[:5].tolist(), torch.rand(1).item()))
    assert seen[0] == seen[1]
    assert seen[0][1] == seen[2][1]
    assert seen[0][0] != seen[2][0]  # the documented difference


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 30])
def test_ranks_have_the_order_of_a_distributed_sampler(shuffle, drop_last, world_size):
    rows = torch.arange(20)
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size}
        loader = FastLoader(rows, 3, shuffle=shuffle, drop_last=drop_last, **ranks)
        sampler = DistributedSampler(rows, world_size, rank, shuffle=shuffle)  # pyright: ignore
        for epoch in (0, 1, 5):
            loader.set_epoch(epoch)
            sampler.set_epoch(epoch)
            expected = DataLoader(rows, 3, sampler=sampler, drop_last=drop_last)  # pyright: ignore
            assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]


def test_blocks_follow_the_seed_of_torch():
    loader = FastLoader(torch.arange(50), 7, shuffle=Blocks(5, 2))
    epochs = []
    for _ in range(2):
        torch.manual_seed(6)
        epochs.append([[plain(batch) for batch in loader] for _ in range(2)])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1]


def test_a_seed_leaves_the_generators_of_torch_alone():
    torch.manual_seed(8)
    expected = torch.rand(1)
    torch.manual_seed(8)
    for _ in range(2):
        list(FastLoader(torch.arange(20), 3, shuffle=True, seed=0))
    assert torch.equal(torch.rand(1), expected)


def test_batch_sampler_of_the_loader_draws_as_that_of_dataloader():
    seen = []
    for kind in (FastLoader, DataLoader):
        torch.manual_seed(1)
        loader = kind(Numbers(20), 3, shuffle=True)
        again = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
        seen.append([[plain(batch) for batch in again] for _ in range(2)] + [torch.rand(1).item()])
    assert seen[0] == seen[1]
