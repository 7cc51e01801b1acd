"""The peak of a job's memory, as tuning observes it."""

from __future__ import annotations

import math
import sys

import pytest
from user_jobs import prepare_user_job

from fastloop.core.time_limits import Deadline, TimedPasses
from fastloop.explain.explained_job import ExplainedJob
from fastloop.options.launcher.single import SingleLauncher
from fastloop.tune.peak_memory import observe_memory, observe_peak_mib

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


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the PSS is Linux's")
def test_no_more_workers_are_observed_if_the_fewest_fail(outputs):
    workers = ("num_workers=1", "prefetch_factor=8")
    job, prepared = prepare_user_job("dataset._target_=my_code.FailingInWorkers", *workers)
    passes: list[str] = []
    explained = ExplainedJob(
        job=job,
        prepared=prepared,
        launcher=LAUNCHER,
        begin_step=passes.append,
        whole_batches=1,
    )
    timed = TimedPasses(deadline=Deadline(), longest_s=0.0)
    profile = observe_memory(explained, 1, {1, 2, 16}, math.inf, timed)
    assert profile is not None
    assert profile.added_mib == {}
    assert profile.prefetch_factor == 2  # that of the observed passes, not the job's
    assert len(passes) == 2  # without workers, and with one
