"""Batches of which several threads gather one part each."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import os_threads
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloop.core.seeds import epoch_seed
from fastloop.fastloader import FastLoader, tuning
from fastloop.fastloader.buffers import _LEASES
from fastloop.fastloader.columns.column import SampleSpec


@dataclass(eq=False)
class SquaresColumn:
    """A column of int64 squares; `seen` records (thread id, number of rows) of each fill."""

    count: int
    fails_at: int = -1
    slow: bool = True
    meeting: threading.Barrier | None = None
    """Where the threads of the first two fills meet."""
    spec: SampleSpec = field(default_factory=lambda: SampleSpec(torch.int64, (2,)))
    seen: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        self.seen.append((threading.get_ident(), len(indices)))
        if self.meeting and len(self.seen) <= 2:
            self.meeting.wait()
        if self.fails_at in indices:
            raise OSError(f"sample {self.fails_at}")
        self.spec.view_tensor(out)[:] = torch.from_numpy(indices**2)[:, None]


@given(
    count=st.integers(1, 300),
    batch_size=st.integers(1, 90),
    part_bytes=st.integers(8, 2000),
    num_threads=st.integers(0, 3),
    drop_last=st.booleans(),
    slow=st.booleans(),
)
def test_batches_made_in_parts_equal_whole_ones(
    count, batch_size, part_bytes, num_threads, drop_last, slow
):
    before, tuning.PART_BYTES = tuning.PART_BYTES, part_bytes
    try:
        source = {"rows": SquaresColumn(count, slow=slow), "labels": torch.arange(count)}
        settings = {"drop_last": drop_last, "num_threads": num_threads}
        loader = FastLoader(source, batch_size, shuffle=True, **settings)
        for epoch in range(2):
            seed = epoch_seed(0, epoch)
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
            expected = list(order.split(batch_size))
            if drop_last and len(expected[-1]) < batch_size:
                expected.pop()
            batches = list(loader)  # all are kept
            assert len(batches) == len(expected) == len(loader)
            for batch, indices in zip(batches, expected, strict=True):
                assert torch.equal(batch["labels"], indices)
                assert torch.equal(batch["rows"], (indices**2)[:, None].expand(-1, 2))
    finally:
        tuning.PART_BYTES = before


def test_threads_share_one_batch_unless_there_is_a_transform():
    squares = SquaresColumn(640, meeting=threading.Barrier(2, timeout=60))
    for _ in FastLoader(squares, 64, num_threads=2):
        pass
    assert {rows for _, rows in squares.seen} == {16}
    assert len({thread for thread, _ in squares.seen}) == 2
    squares.meeting = None
    squares.seen.clear()
    for _ in FastLoader(squares, 64, num_threads=2, transform=torch.neg):
        pass
    assert {rows for _, rows in squares.seen} == {64}  # a transform gets whole batches


def test_transform_set_later_gets_whole_batches():
    loader = FastLoader(SquaresColumn(640), 64, num_threads=2)
    loader.transform = lambda batch: (len(batch), threading.get_ident())
    assert [size for size, _ in loader] == [64] * 10


def test_error_in_a_part_is_raised_at_its_batch_and_ends_all_threads():
    threads = os_threads.count_threads()
    batches = iter(FastLoader(SquaresColumn(640, fails_at=200), 64, num_threads=2))
    for _ in range(3):
        next(batches)
    with pytest.raises(OSError, match="sample 200"):
        next(batches)
    assert os_threads.falls_to(threads)


def count_leases(buffers) -> int:
    """Number of this column's arrays that are in use."""
    return sum(owner is buffers for _, owner, _ in [*_LEASES.values()])


def test_buffers_of_unfinished_batches_are_reused(monkeypatch):
    monkeypatch.setattr(tuning, "PART_BYTES", 1 << 10)
    loader = FastLoader(torch.arange(6400).view(640, 10), 64, shuffle=True, num_threads=2)
    for _ in range(30):
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        del batches
        assert loader._streams.pool is not None
        (buffers,) = loader._streams.pool.columns
        # buffers that threads were filling are returned as well, once these threads have ended
        assert os_threads.falls_to(0, partial(count_leases, buffers))
        assert 1 <= len(buffers) <= buffers.capacity


def test_free_buffers_beyond_the_capacity_are_released():
    loader = FastLoader(torch.arange(64_000).view(6400, 10), 64, shuffle=True, num_threads=1)
    batches = list(loader)
    assert loader._streams.pool is not None
    (buffers,) = loader._streams.pool.columns
    buffers.capacity = 1
    del batches
    gc.collect()
    assert len(buffers) == 1
