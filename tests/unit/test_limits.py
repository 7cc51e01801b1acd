"""Gather limit: it counts the rows that it gathers, within bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastloop.core.trees import read_bytes
from fastloop.trial import limits

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [limits._index_select, limits._np_take])
def test_gatherer_counts_its_rows_and_fetches_the_right_ones(make, monkeypatch):
    source = np.random.default_rng(0).integers(256, size=(100, 24), dtype=np.uint8)
    gatherer = make(source, 7, seed=1)
    assert len(gatherer.index_batches) == 100 // 7
    ticks = iter([0, 0, 0, 10])
    monkeypatch.setattr(limits, "now_ns", lambda: next(ticks))
    assert gatherer.run(stop_ns=10, reads=True) == 4 * 7
    assert np.array_equal(gatherer.out, source[np.asarray(gatherer.index_batches[3])])


def test_limit_restores_the_torch_thread_count():
    before = torch.get_num_threads()
    assert limits.limit_rows_per_s(1000, 64, 10, CPU, reads=False) > 0
    assert torch.get_num_threads() == before


def test_limit_source_stays_within_256_mib(monkeypatch):
    sources = []
    monkeypatch.setattr(
        limits, "_gather_rate", lambda make, budget_ns, reads: sources.append(make.args[0]) or 1.0
    )
    limits.limit_rows_per_s(10**9, 1 << 20, 64, CPU, reads=False)
    assert {source.nbytes for source in sources} == {256 << 20}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.ones(3, 5, dtype=torch.uint8)[1:],
        torch.ones(9, dtype=torch.bfloat16),
        torch.ones(4, 6).t(),
        torch.ones(3, dtype=torch.bool),
    ],
)
def test_read_bytes_accepts_any_tensor(tensor):
    assert read_bytes((tensor, {"nested": [tensor]})) == 2 * tensor.numel() * tensor.itemsize


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_limit_on_cuda_is_below_a_terabyte_per_second():
    on_gpu = limits.limit_rows_per_s(10_000, 3136, 256, torch.device("cuda"), reads=False)
    assert 0 < on_gpu * 3136 < 1e12
