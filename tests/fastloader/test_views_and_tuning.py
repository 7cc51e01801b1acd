"""Sequential batches are views of the source where possible; the automatic tuning of threads."""

from __future__ import annotations

import threading
import time
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastloop import FastLoader, Images, converted
from fastloop.fastloader import loader_tuning
from fastloop.fastloader.bytes_ahead import AHEAD_BYTES
from fastloop.fastloader.loader_tuning import (
    GROUP_BYTES,
    UNTHREADED_BYTES,
    Workload,
    choose_tuning,
)

MIB = 1 << 20
KINDS = {
    "native": {"is_cheap": True, "is_native": True},
    "copied by Python": {"is_cheap": True},
    "device": {"is_cheap": True, "is_grouped": True},
    "decoded": {"is_cheap": False},
}


def shares_memory(batch: torch.Tensor, source: torch.Tensor) -> bool:
    start, end = source.data_ptr(), source.data_ptr() + source.untyped_storage().nbytes()
    return start <= batch.data_ptr() < end


@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    drop_last=st.booleans(),
    copy=st.booleans(),
    mixed=st.booleans(),
    taken=st.integers(0, 9),
)
def test_sequential_batches_are_slices_of_the_source(
    count, batch_size, drop_last, copy, mixed, taken
):
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
    for start, (batch, batch_labels) in zip(starts, batches, strict=True):
        assert torch.equal(batch, rows[start : start + batch_size])
        assert batch_labels.tolist() == list(range(count))[start : start + batch_size]
        assert shares_memory(batch, rows) is not copy


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_sequential_epoch_in_memory_starts_no_thread(shape, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    source = {"x": torch.rand(50, *shape), "y": np.arange(50)}
    batches = list(FastLoader(source, 8, copy=False))
    assert torch.equal(torch.cat([batch["x"] for batch in batches]), source["x"])


@pytest.mark.parametrize("transform", [None, lambda batch: batch.add_(1)])
def test_batches_are_copies_unless_views_are_asked_for(transform):
    source = torch.zeros(10, 2)
    for batch in FastLoader(source, 4, transform=transform):
        batch.fill_(1)
    assert not source.any()
    for batch in FastLoader(source, 4, transform=transform, copy=False):
        batch.fill_(1)
    assert source.all()


def test_batch_of_a_noncontiguous_source_is_a_view():
    source = torch.arange(40).view(4, 10).t()
    for batch in FastLoader(source, 3, copy=False):
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
        "expanded row": torch.zeros(1, dtype=torch.int64).expand(30),
        "converted": converted(torch.arange(30), torch.float64),
    }


def test_read_only_mapped_and_converted_sources_are_copied(tmp_path):
    for name, source in sources(tmp_path).items():
        first = torch.cat(list(FastLoader(source, 7)))
        for batch in FastLoader(source, 7, copy=False):
            batch.fill_(-1)
        assert torch.equal(torch.cat(list(FastLoader(source, 7))), first), name


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True},
        {"sampler": range(30)},
        {"batch_sampler": [[0, 1]]},
        {"rank": 0, "world_size": 2},
    ],
)
def test_every_order_but_the_sequential_one_copies(settings):
    source = torch.arange(30)
    for batch in FastLoader(source, **settings, copy=False):
        batch.fill_(-1)
    assert torch.equal(source, torch.arange(30))


def test_transform_of_sequential_batches_runs_in_threads():
    main = threading.get_ident()
    loader = FastLoader(torch.arange(30), 4, transform=lambda batch: (batch, threading.get_ident()))
    assert torch.equal(torch.cat([batch for batch, _ in loader]), torch.arange(30))
    assert all(thread != main for _, thread in loader)  # the loop's makes the loader's first batch


@given(
    row_nbytes=st.integers(0, 200 * MIB),
    batch_size=st.integers(1, 5000),
    num_samples=st.integers(0, 10**9),
    kind=st.sampled_from([*KINDS]),
    cores=st.integers(1, 200),
)
def test_tuning_bounds_memory_and_threads(row_nbytes, batch_size, num_samples, kind, cores):
    workload = Workload(row_nbytes, batch_size, num_samples, **KINDS[kind])
    before, loader_tuning.usable_cores = loader_tuning.usable_cores, lambda: cores
    try:
        tuned = choose_tuning(workload)
    finally:
        loader_tuning.usable_cores = before
    assert tuned.group_rows == 1 or (
        kind == "device" and tuned.group_rows * max(1, row_nbytes) <= GROUP_BYTES
    )
    nbytes = max(tuned.group_rows, batch_size) * row_nbytes
    is_small = workload.is_cheap and row_nbytes * num_samples <= UNTHREADED_BYTES
    assert (tuned.num_threads == 0) is (is_small or kind == "copied by Python")
    assert tuned.num_threads <= cores
    ahead = tuned.num_threads * tuned.prefetch_factor * nbytes
    is_least = (tuned.prefetch_factor, tuned.num_threads) == (1, 1)
    assert ahead <= AHEAD_BYTES or is_least or kind == "native"


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        ((3144, 256, 60_000), 1),
        ((150_528, 256, 10_240), 1),
        ((8, 300, 300_000), 1),
        ((8, 300, 60_000), 0),
    ],
    ids=["rows", "mapped", "integers", "few integers"],
)
def test_native_core_has_a_thread_beside_the_loop_on_two_cores(monkeypatch, epoch, expected):
    monkeypatch.setattr(loader_tuning, "usable_cores", lambda: 2)
    tuned = choose_tuning(Workload(*epoch, is_cheap=True, is_native=True))
    assert tuned.num_threads == expected


def test_prefetch_factor_bounds_what_the_core_makes_ahead():
    """A batch is a block, of more than 1 MiB; one is the loop's, and the next may be its, too."""
    rows = np.zeros((40, 2 << 20), np.uint8)
    loader = FastLoader(rows, 1, num_threads=1, prefetch_factor=1)
    pieces = loader.record_pieces()
    if pieces is None:
        pytest.skip("no native core")
    running = iter(loader)
    next(running)
    time.sleep(0.2)  # a thread that makes more has the time for it
    running.close()
    assert pieces.read()[:, 1].max() <= 2
    for threads, ahead, blocks in ((2, 3, 6), (0, 4, 4), (4, 1, 4)):
        plan = FastLoader(rows, 4, num_threads=threads, prefetch_factor=ahead)._epochs.engine.plan
        assert plan.max_blocks == blocks


def test_given_num_threads_and_prefetch_factor_are_kept():
    loader = FastLoader(torch.arange(10), num_threads=7, prefetch_factor=5)
    assert (loader.num_threads, loader.prefetch_factor) == (7, 5)


def test_slow_samples_use_every_thread(monkeypatch):
    monkeypatch.setattr(loader_tuning, "usable_cores", lambda: 2)
    slow = Images(png_files(6), decoder="pil")
    assert FastLoader((slow, torch.arange(6)), 2).num_threads == 2
    assert FastLoader(torch.arange(6), 2).num_threads == 0


def png_files(count: int) -> list[bytes]:
    """PNG files of `count` small images."""
    files = []
    for number in range(count):
        file = BytesIO()
        Image.new("RGB", (4, 3), (number, 0, 0)).save(file, "PNG")
        files.append(file.getvalue())
    return files
