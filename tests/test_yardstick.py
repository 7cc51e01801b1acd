"""The yardstick gathers what it says it gathers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastloop import yardstick
from fastloop.benchmarks.traversal import read

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [yardstick._index_select, yardstick._np_take])
def test_a_gatherer_counts_its_rows_and_fetches_the_right_ones(make, monkeypatch):
    source = np.random.default_rng(0).integers(256, size=(100, 24), dtype=np.uint8)
    one = make(source, 7, seed=1)
    assert len(one.picks) == 100 // 7
    ticks = iter([0, 0, 0, 10])
    monkeypatch.setattr(yardstick, "now_ns", lambda: next(ticks))
    assert one.run(stop_ns=10, reads=True) == 4 * 7
    assert np.array_equal(one.out, source[np.asarray(one.picks[3])])


def test_torchs_threads_are_as_before():
    before = torch.get_num_threads()
    assert yardstick.limit_rows_per_s(1000, 64, 10, CPU, reads=False) > 0
    assert torch.get_num_threads() == before


def test_a_source_of_any_size_stays_within_256_mib(monkeypatch):
    made = []
    monkeypatch.setattr(
        yardstick, "_rate", lambda make, budget_ns, reads: made.append(make.args[0]) or 1.0
    )
    yardstick.limit_rows_per_s(10**9, 1 << 20, 64, CPU, reads=False)
    assert {source.nbytes for source in made} == {256 << 20}


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
def test_any_tensor_can_be_read(tensor):
    assert read((tensor, {"nested": [tensor]})) == 2 * tensor.numel() * tensor.itemsize


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_on_cuda_the_limit_is_no_more_than_the_pinned_copy():
    on_gpu = yardstick.limit_rows_per_s(10_000, 3136, 256, torch.device("cuda"), reads=False)
    assert 0 < on_gpu * 3136 < 1e12
