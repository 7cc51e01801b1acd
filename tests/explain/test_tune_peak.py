"""The peak of a job's memory, as tuning observes it."""

from __future__ import annotations

import sys

import pytest

from fastloop.options.launcher.single import SingleLauncher
from fastloop.tune.peak_memory import observe_peak_mib

ROW_MIB = 2
ROWS = ("dataset=synthetic", "dataset.shape=[512,1024]", "batch_size=2", "benchmark=traversal")
LAUNCHER = SingleLauncher(isolation="forkserver")


def peak_mib(prepared_job, *overrides) -> float:
    peak = LAUNCHER.call(observe_peak_mib, *prepared_job(*ROWS, *overrides))
    assert peak is not None
    return peak


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the PSS is Linux's")
def test_peak_holds_the_rows_and_workers_that_live_for_a_moment(prepared_job):
    few, many = (
        peak_mib(prepared_job, "loader=preload", f"dataset.count={count}") for count in (4, 36)
    )
    assert many - few > 0.9 * 32 * ROW_MIB
    with_workers = peak_mib(prepared_job, "loader=preload", "dataset.count=4", "num_workers=2")
    assert with_workers > few + 5  # a worker's own pages, of an epoch of two batches
