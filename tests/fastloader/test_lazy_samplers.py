"""Samplers are read as an epoch goes on; the next epoch's order holds up none."""

from __future__ import annotations

import threading
from itertools import count, islice

import numpy as np
import pytest
import torch
from native_core import needs_core
from torch.utils.data import Dataset

from fastloop import FastLoader


class Numbers(Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


class Endless:
    """An endless sampler of indices, or of batches of two, which counts what is read from it."""

    def __init__(self, is_batched: bool) -> None:
        self.is_batched, self.taken, self.threads = is_batched, 0, set()

    def __iter__(self):
        for number in count():
            self.taken += 1
            self.threads.add(threading.get_ident())
            index = number % 1000
            yield [index, index] if self.is_batched else index


@pytest.mark.parametrize("source", [Numbers(), torch.arange(1000)], ids=["dataset", "rows"])
@pytest.mark.parametrize("num_threads", [0, 1, 2])
@pytest.mark.parametrize("is_batched", [False, True])
def test_endless_samplers_are_read_as_the_epoch_goes_on(source, num_threads, is_batched):
    sampler = Endless(is_batched)
    settings = {"batch_sampler": sampler} if is_batched else {"sampler": sampler, "batch_size": 2}
    loader = FastLoader(source, num_threads=num_threads, **settings)
    delivered = [number for batch in islice(loader, 600) for number in batch.tolist()]
    expected = np.arange(600).repeat(2) if is_batched else np.arange(1200) % 1000
    assert delivered == expected.tolist()
    # 600 batches, and ahead of them what has been made and what has been read
    assert sampler.taken < (600 if is_batched else 1200) + 4 * 4096
    assert sampler.threads == {threading.get_ident()}
    with pytest.raises(TypeError, match="has no len"):
        len(loader)


def test_state_of_an_endless_epoch_resumes_it():
    loader = FastLoader(torch.arange(1000), 3, sampler=Endless(False))
    running = iter(loader)
    taken = [next(running).tolist() for _ in range(5)]
    assert taken[-1] == [12, 13, 14]
    resumed = FastLoader(torch.arange(1000), 3, sampler=Endless(False))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist() == [15, 16, 17]


def test_error_of_a_sampler_is_raised_at_its_batch():
    def indices():
        yield from range(7)
        raise ZeroDivisionError("sampler")

    seen = []
    with pytest.raises(ZeroDivisionError, match="sampler"):
        seen.extend(batch.tolist() for batch in FastLoader(Numbers(), 2, sampler=indices()))
    assert seen[0] == [0, 1]


@needs_core
def test_order_is_drawn_by_the_core_as_the_epoch_goes_on(monkeypatch):
    expected = torch.randperm(6000, generator=torch.Generator().manual_seed(5))
    monkeypatch.setattr(torch, "randperm", lambda *_, **__: pytest.fail("drawn as a whole"))
    for settings in ({}, {"transform": lambda batch: batch}, {"num_threads": 0}):
        loader = FastLoader(torch.arange(6000), 300, shuffle=True, seed=5, **settings)
        assert torch.equal(torch.cat(list(loader)), expected)
