"""Batches that several threads make in parts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import os_threads
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloop.fastloader import FastLoader, pace
from fastloop.fastloader.columns import Kind


@dataclass(frozen=True, eq=False)
class Squares:
    """int64 squares, slow, which says who made how many rows at once, and may fail."""

    count: int
    fails_at: int = -1
    slow: bool = True
    kind: Kind = field(default_factory=lambda: Kind(torch.int64, (2,)))
    seen: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        self.seen.append((threading.get_ident(), len(indices)))
        if self.fails_at in indices:
            raise OSError(f"sample {self.fails_at}")
        self.kind.seen(out)[:] = torch.from_numpy(indices**2)[:, None]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 300),
    batch_size=st.integers(1, 90),
    part_bytes=st.integers(8, 2000),
    num_threads=st.integers(0, 3),
    drop_last=st.booleans(),
    slow=st.booleans(),
)
def test_parts_make_the_batches_that_are_asked_for(
    count, batch_size, part_bytes, num_threads, drop_last, slow
):
    before, pace.PART_BYTES = pace.PART_BYTES, part_bytes
    try:
        source = {"rows": Squares(count, slow=slow), "labels": torch.arange(count)}
        shared = {"drop_last": drop_last, "num_threads": num_threads}
        loader = FastLoader(source, batch_size, shuffle=True, **shared)
        for epoch in range(2):
            drawn = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
            wanted = list(drawn.split(batch_size))
            if drop_last and len(wanted[-1]) < batch_size:
                wanted.pop()
            batches = list(loader)  # all of them held
            assert len(batches) == len(wanted) == len(loader)
            for batch, indices in zip(batches, wanted, strict=True):
                assert torch.equal(batch["labels"], indices)
                assert torch.equal(batch["rows"], (indices**2)[:, None].expand(-1, 2))
    finally:
        pace.PART_BYTES = before


def test_threads_share_a_batch():
    squares = Squares(640)
    for _ in FastLoader(squares, 64, num_threads=2):
        pass
    assert {rows for _, rows in squares.seen} == {16}
    assert len({who for who, _ in squares.seen}) == 2
    squares.seen.clear()
    for _ in FastLoader(squares, 64, num_threads=2, transform=torch.neg):
        pass
    assert {rows for _, rows in squares.seen} == {64}  # a transform is given whole batches


def test_a_transform_that_is_set_later_is_done_with_whole_batches():
    loader = FastLoader(Squares(640), 64, num_threads=2)
    loader.transform = lambda batch: (len(batch), threading.get_ident())
    assert [size for size, _ in loader] == [64] * 10


def test_what_fails_in_a_part_is_raised_with_its_batch_and_ends_the_threads():
    before = os_threads.counted()
    batches = iter(FastLoader(Squares(640, fails_at=200), 64, num_threads=2))
    for _ in range(3):
        next(batches)
    with pytest.raises(OSError, match="sample 200"):
        next(batches)
    assert os_threads.fell_to(before)


def test_the_memory_of_a_batch_that_was_left_in_parts_is_used_again(monkeypatch):
    monkeypatch.setattr(pace, "PART_BYTES", 1 << 10)
    loader = FastLoader(torch.arange(6400).view(640, 10), 64, shuffle=True, num_threads=2)
    kept, threads = [], os_threads.counted()
    for _ in range(30):
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        del batches
        assert os_threads.fell_to(threads)  # whose last frames may hold a batch
        assert loader._pool is not None
        (home,) = loader._pool.homes
        kept.append(len(home))
    assert kept == sorted(kept)  # what threads were filling has come back, too
    assert 1 <= kept[-1] <= home.most
