"""A FastLoader in DataLoader's place: the same batches and the same draws at the same moments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

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

from fastloop import FastLoader


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
    "rows": lambda count: torch.arange(count),
    "tensors": lambda count: TensorDataset(torch.arange(count)),
    "array": lambda count: np.arange(count),
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
@given(order=orders(), visits=VISITS, num_threads=st.sampled_from([None, 0, None]))
def test_batches_and_draws_are_those_of_dataloader(source, order, visits, num_threads):
    def fast(settings: dict[str, Any]) -> FastLoader:
        return FastLoader(SOURCES[source](order["count"]), num_threads=num_threads, **settings)

    def torchs(settings: dict[str, Any]) -> DataLoader:
        samples: Any = SOURCES[source](order["count"])
        return DataLoader(samples, **settings)

    assert trace(fast, order, visits) == trace(torchs, order, visits)
