"""A source in its own order is not copied, unless it has to be; and what paces its threads."""

from __future__ import annotations

import threading
from io import BytesIO
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastloop import FastLoader, Images, converted
from fastloop.fastloader import pace
from fastloop.fastloader.pace import (
    AHEAD_BYTES,
    BLOCK_BYTES,
    BLOCKS_A_THREAD,
    SHORT_BYTES,
    pace_of,
)

MIB = 1 << 20


def shares_memory(batch: torch.Tensor, source: torch.Tensor) -> bool:
    start, end = source.data_ptr(), source.data_ptr() + source.untyped_storage().nbytes()
    return start <= batch.data_ptr() < end


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    drop_last=st.booleans(),
    copy=st.booleans(),
    mixed=st.booleans(),
    taken=st.integers(0, 9),
)
def test_in_order_comes_what_slicing_gives(count, batch_size, drop_last, copy, mixed, taken):
    rows, labels = torch.rand(count, 3), np.arange(count)
    labels.flags.writeable = not mixed
    loader = FastLoader((rows, labels), batch_size, drop_last=drop_last, copy=copy)
    taken = min(taken, max(0, len(loader) - 1))
    running = iter(loader)
    for _ in range(taken):
        next(running)
    rest = FastLoader((rows, labels), batch_size, drop_last=drop_last, copy=copy)
    rest.load_state_dict(loader.state_dict())
    batches = list(rest)
    starts = list(range(0, count, batch_size))[: len(loader)][taken:]
    assert len(batches) == len(starts)
    for start, (got, numbers) in zip(starts, batches, strict=True):
        assert torch.equal(got, rows[start : start + batch_size])
        assert numbers.tolist() == list(range(count))[start : start + batch_size]
        assert shares_memory(got, rows) is not copy


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_no_thread_is_started_for_what_lies_in_memory(shape, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread"))
    source = {"x": torch.rand(50, *shape), "y": np.arange(50)}
    batches = list(FastLoader(source, 8))
    assert torch.equal(torch.cat([batch["x"] for batch in batches]), source["x"])


def test_a_batch_in_order_is_the_sources_own_memory_and_copy_makes_it_its_own():
    source = torch.zeros(10, 2)
    for batch in FastLoader(source, 4, copy=True):
        batch.fill_(1)
    assert not source.any()
    for batch in FastLoader(source, 4):
        batch.fill_(1)
    assert source.all()


def test_a_source_that_is_not_contiguous_is_looked_at_as_it_is():
    source = torch.arange(40).view(4, 10).t()
    for batch in FastLoader(source, 3):
        batch.add_(1)
    assert torch.equal(source, torch.arange(1, 41).view(4, 10).t())


def sources(tmp_path):
    read_only = np.arange(30)
    read_only.flags.writeable = False
    mapped = np.memmap(tmp_path / "rows", np.int64, "w+", shape=(30,))
    mapped[:] = np.arange(30)
    return {
        "read-only": read_only,
        "mapped": mapped,
        "the same row again and again": torch.zeros(1, dtype=torch.int64).expand(30),
        "converted": converted(torch.arange(30), torch.float64),
    }


def test_what_may_not_be_written_to_or_has_to_be_read_is_copied(tmp_path):
    for name, source in sources(tmp_path).items():
        first = torch.cat(list(FastLoader(source, 7)))
        for batch in FastLoader(source, 7):
            batch.fill_(-1)
        assert torch.equal(torch.cat(list(FastLoader(source, 7))), first), name


@pytest.mark.parametrize(
    "settings",
    [{"shuffle": True}, {"sampler": range(30)}, {"batch_sampler": [[0, 1]]}, {"world_size": 2}],
)
def test_only_the_sources_own_order_is_without_a_copy(settings):
    source = torch.arange(30)
    for batch in FastLoader(source, **settings):
        batch.fill_(-1)
    assert torch.equal(source, torch.arange(30))


def test_a_transform_in_order_is_done_in_threads():
    main = threading.get_ident()
    loader = FastLoader(torch.arange(30), 4, transform=lambda one: (one, threading.get_ident()))
    assert all(where != main for _, where in loader)
    assert torch.equal(torch.cat([one for one, _ in loader]), torch.arange(30))


@settings(max_examples=200, deadline=None)
@given(
    row_nbytes=st.integers(0, 200 * MIB),
    batch_size=st.integers(1, 5000),
    num_samples=st.integers(0, 10**9),
    together=st.booleans(),
    cores=st.integers(1, 200),
)
def test_the_pace_keeps_memory_bounded(row_nbytes, batch_size, num_samples, together, cores):
    before, pace.usable_cores = pace.usable_cores, lambda: cores
    try:
        found = pace_of(row_nbytes, batch_size, num_samples, together, (None, None))
    finally:
        pace.usable_cores = before
    counts = list(islice(found.batches(row_nbytes, batch_size, num_samples), 40 * cores))
    assert counts == sorted(counts)
    assert counts[0] == 1
    batches = counts[-1] if together else 1
    short = together and row_nbytes * num_samples <= SHORT_BYTES
    assert int(not short) <= found.num_threads <= cores
    assert batches == 1 or batches * batch_size * row_nbytes <= BLOCK_BYTES
    block_nbytes = batches * batch_size * row_nbytes
    ahead = found.num_threads * found.prefetch_factor * block_nbytes
    assert ahead <= AHEAD_BYTES or (found.prefetch_factor == 1 and found.num_threads == 1)
    blocks = BLOCKS_A_THREAD * max(1, found.num_threads)
    assert batches == 1 or (batches - 1) * blocks < -(-num_samples // batch_size)


@pytest.mark.parametrize(
    ("epoch", "wanted"),
    [
        ((3144, 256, 60_000), (1, 2, 5)),
        ((150_528, 256, 10_240), (1, 1, 1)),
        ((8, 300, 300_000), (0, 2, 250)),
        ((784, 256, 10_000), (1, 2, 10)),
    ],
    ids=["A", "D", "E", "a tenth of B"],
)
def test_the_pace_on_two_cores(monkeypatch, epoch, wanted):
    monkeypatch.setattr(pace, "usable_cores", lambda: 2)
    row_nbytes, batch_size, num_samples = epoch
    found = pace_of(row_nbytes, batch_size, num_samples, True, (None, None))
    counts = list(islice(found.batches(row_nbytes, batch_size, num_samples), 40))
    assert (found.num_threads, found.prefetch_factor, counts[-1]) == wanted


@pytest.mark.parametrize(
    ("cores", "cheap", "row_nbytes", "batch_size", "wanted"),
    [
        (2, True, 150_528, 256, (1, 43, 6)),
        (8, True, 150_528, 256, (4, 52, 2)),
        (2, False, 150_528, 64, (2, 16, 8)),
        (2, True, 3144, 256, (1, 0, 0)),
    ],
    ids=["D", "D on 8 cores", "C", "A"],
)
def test_large_and_slow_batches_are_made_in_parts(
    monkeypatch, cores, cheap, row_nbytes, batch_size, wanted
):
    monkeypatch.setattr(pace, "usable_cores", lambda: cores)
    found = pace_of(row_nbytes, batch_size, 10_240, cheap, (None, None), divisible=True)
    assert (found.num_threads, found.part_rows, found.parts_ahead) == wanted
    block_nbytes = found.part_rows * row_nbytes
    assert found.num_threads * found.parts_ahead * block_nbytes <= AHEAD_BYTES


def test_what_is_given_is_taken():
    loader = FastLoader(torch.arange(10), num_threads=7, prefetch_factor=5)
    assert (loader.num_threads, loader.prefetch_factor) == (7, 5)


def test_samples_that_are_slow_to_make_keep_every_thread_busy(monkeypatch):
    monkeypatch.setattr(pace, "usable_cores", lambda: 2)
    slow = Images(png_files(6), decoder="pil")
    assert FastLoader((slow, torch.arange(6)), 2).num_threads == 2
    assert FastLoader(torch.arange(6), 2).num_threads == 0
    _, coming = FastLoader((slow, torch.arange(6)), 2)._coming(0)
    blocks = list(coming)
    assert [len(block.indices) for block in blocks] == [2, 2, 2]


def png_files(count: int) -> list[bytes]:
    """As many small pictures."""
    files = []
    for number in range(count):
        file = BytesIO()
        Image.new("RGB", (4, 3), (number, 0, 0)).save(file, "PNG")
        files.append(file.getvalue())
    return files
