"""Predicted epochs of jobs whose batches take known times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from options import compose_job

from fastloop.explain import predict
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.predict import (
    HandOff,
    Measured,
    predict_gathered_seconds,
    predict_seconds,
    predict_threaded_seconds,
)
from fastloop.explain.rung_passes import EpochTimes

COUNT = 100


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(predict, "available_cores", lambda: 4)


def batch_times(load_s: float, load_cpu_s: float, step_s: float, threads: int) -> BatchTimes:
    return BatchTimes(
        load_s=[load_s] * 10,
        load_cpu_s=[load_cpu_s] * 10,
        step_s=[step_s] * 10,
        step_cpu_s=[step_s] * 10,
        clone_s=0.001,
        torch_threads=threads,
    )


def measured(load_s: float = 0.006, load_cpu_s: float = 0.006) -> Measured:
    in_loop = EpochTimes(seconds=0.05, batches=10, first_wait_s=0.0, later_wait_s=0.0, end_s=0.0)
    from_workers = replace(in_loop, seconds=0.05 + 0.02 + 10 * 0.0005, first_wait_s=0.02)
    return Measured(
        batches=COUNT,
        own_threads=batch_times(load_s, load_cpu_s, 0.004, 4),
        one_thread=batch_times(load_s, load_cpu_s, 0.005, 1),
        hand_off={count: [HandOff(from_workers, in_loop)] for count in (1, 2)},
        kept=0.25,
    )


def test_a_round_of_the_hand_off_that_was_disturbed_changes_nothing():
    times = measured()
    usual = times.hand_off[2][0]
    slow = replace(usual.from_workers, seconds=9 * usual.from_workers.seconds, first_wait_s=0.3)
    rounds = [usual, usual._replace(from_workers=slow), usual]
    job = compose_job("num_workers=2")
    again = replace(times, hand_off={2: rounds})
    assert predict_seconds(job, again) == pytest.approx(predict_seconds(job, times))


def test_a_rare_slow_batch_of_a_short_epoch_may_come_anywhere():
    """The model doesn't know at which batch of an epoch timing has begun."""
    times, job = measured(load_s=0.001), compose_job("num_workers=1", "persistent_workers=true")
    seconds = set()
    for place in range(8):
        load_s = [0.001] * 8
        load_s[place] = 0.05
        batches = BatchTimes(
            load_s=load_s, load_cpu_s=load_s, step_s=[0.005] * 8, step_cpu_s=[0.005] * 8
        )
        once = replace(times, batches=8, own_threads=batches, one_thread=batches)
        seconds.add(round(predict_seconds(job, once), 9))
    assert len(seconds) == 1


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ((), COUNT * 0.010),
        (("torch_threads=1",), COUNT * 0.011),
        (("num_workers=1",), 0.02 + COUNT * 0.006),
        (("num_workers=2",), 0.02 + COUNT * 0.0045),
        (("num_workers=2", "torch_threads=1"), 0.02 + COUNT * 0.0055),
        (("num_workers=2", "persistent_workers=true"), COUNT * 0.0045),
    ],
)
def test_settings_change_what_limits_the_epoch(overrides, seconds):
    predicted = predict_seconds(compose_job(*overrides), measured())
    assert predicted == pytest.approx(seconds, abs=0.015)


def test_rows_of_a_store_are_loaded_in_the_share_of_time_that_is_kept():
    predicted = predict_seconds(compose_job("loader=np_memmap"), measured(), kept=0.25)
    assert predicted == pytest.approx(COUNT * (0.0015 + 0.004))


def test_a_part_that_moves_to_the_step_is_no_longer_hidden():
    """Half of 6 ms are loaded by a worker; 1 ms more is in the step of 4 ms, with 4 threads."""
    job = compose_job("num_workers=1")
    predicted = predict_seconds(job, measured(), kept=0.5, added_step_s=0.001)
    assert predicted == pytest.approx(0.02 + COUNT * 0.0055, abs=0.015)


def test_a_quota_slows_down_what_runs_beside_each_other():
    job = compose_job("num_workers=1", "torch_threads=1")
    free, short = (predict_seconds(job, measured(), cores=cores) for cores in (4, 1))
    assert free == pytest.approx(0.02 + COUNT * 0.006, abs=0.015)
    assert short == pytest.approx(0.02 + COUNT * 0.0115, abs=0.02)


def test_rows_that_are_gathered_ahead_are_hidden_behind_the_step():
    predicted = predict_gathered_seconds(compose_job("loader=fastloop"), measured())
    assert predicted == pytest.approx(COUNT * 0.004, rel=0.02)


@pytest.mark.parametrize(
    ("cpu_s", "num_threads", "batch_s"),
    [
        (0.006, 0, 0.010),
        (0.006, 1, 0.010),
        (0.006, 4, 0.010),
        (0.0, 0, 0.010),
        (0.0, 1, 0.006),
        (0.0, 4, 0.004),
    ],
)
def test_threads_that_read_samples_share_the_lock_with_the_loop(cpu_s, num_threads, batch_s):
    job, times = compose_job("loader=fastloop", "loader.store=null"), measured(load_cpu_s=cpu_s)
    predicted = predict_threaded_seconds(job, times, num_threads)
    assert predicted == pytest.approx(COUNT * batch_s, rel=0.03)


@pytest.mark.parametrize(("cpu_s", "batch_s"), [(0.006, 0.010), (0.0, 0.006)])
def test_a_thread_hides_waits_but_no_work_that_needs_the_lock(cpu_s, batch_s):
    job = compose_job("device_prefetch=2")
    predicted = predict_seconds(job, measured(load_cpu_s=cpu_s))
    assert predicted == pytest.approx(COUNT * batch_s, rel=0.02)


def test_a_long_epoch_goes_on_at_the_pace_of_its_beginning():
    once, long = measured(), replace(measured(), batches=100 * COUNT)
    job = compose_job("num_workers=2")
    start_s = 0.02
    ratio = (predict_seconds(job, long) - start_s) / (predict_seconds(job, once) - start_s)
    assert ratio == pytest.approx(100, rel=0.02)
