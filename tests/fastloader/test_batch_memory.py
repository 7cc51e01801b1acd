"""Large batches that Python makes lie in memory that is used again once nobody holds it."""

from __future__ import annotations

import gc
import io
import pickle

import psutil
import pytest
import torch
from native_core import needs_core

from fastloop import FastLoader
from fastloop.fastloader.batch_memory import MIN_POOLED_BYTES, BatchMemory
from fastloop.options.launcher.single import SingleLauncher

MIB = 1 << 20


@needs_core
def test_memory_of_a_released_batch_is_used_again_and_of_a_held_one_never():
    memory = BatchMemory()
    held = memory.empty_rows(4, MIN_POOLED_BYTES, False).fill_(7)
    places = set()
    for number in range(20):
        rows = memory.empty_rows(4, MIN_POOLED_BYTES, False).fill_(number)
        places.add(rows.data_ptr())
        assert rows.data_ptr() != held.data_ptr()
        del rows
    assert len(places) == 1
    view = held[1:3]
    del held
    others = [memory.empty_rows(4, MIN_POOLED_BYTES, False).fill_(9) for _ in range(4)]
    assert len({other.data_ptr() for other in others}) == 4
    assert (view == 7).all()


def test_rows_of_every_size_are_ordinary_tensors():
    memory = BatchMemory()
    for num_rows, row_nbytes in ((0, 8), (3, 0), (5, 8), (3, MIN_POOLED_BYTES + 1)):
        rows = memory.empty_rows(num_rows, row_nbytes, False).fill_(1)
        assert (rows.dtype, rows.shape) == (torch.uint8, (num_rows, row_nbytes))
        assert rows.is_contiguous()
        file = io.BytesIO()
        torch.save(rows, file)
        file.seek(0)
        assert torch.equal(torch.load(file), rows)


def hold_last_batch() -> tuple[int, int, bool]:
    """Free bytes of a loader's memory, by how much the process shrinks when the loader ends, and
    whether the batch that is held is right."""
    rows = torch.ones(4, 10 * MIB)  # batches of 40 MiB, which the C library never keeps
    loader = FastLoader(rows, 1, transform=lambda batch: batch.mul_(3))
    for batch in loader:
        last = batch
    del batch
    free_nbytes = loader._reading.source.memory.pool.free_nbytes()
    # addresses, as the system may have taken idle pages out of the resident memory before
    before = psutil.Process().memory_info().vms
    del loader
    gc.collect()
    shrunk = before - psutil.Process().memory_info().vms
    return free_nbytes, shrunk, bool((last == 3).all())


@pytest.mark.heavy
@needs_core
def test_memory_of_batches_ends_with_its_loader_and_its_last_batch():
    # a new process: where other libraries were imported, the C library may keep all memory
    free_nbytes, shrunk, is_right = SingleLauncher(isolation="forkserver").call(hold_last_batch)
    assert free_nbytes >= 40 * MIB
    assert shrunk > 0.9 * free_nbytes
    assert is_right


def test_another_process_has_memory_of_its_own():
    memory = pickle.loads(pickle.dumps(BatchMemory()))
    assert memory.empty_rows(2, MIN_POOLED_BYTES, False).shape == (2, MIN_POOLED_BYTES)
