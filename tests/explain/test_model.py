"""The model of a loader against answers that are known in closed form."""

from __future__ import annotations

import pytest

from fastloop.explain.model import WORST_CROWDED_POWER, Machinery, Phase, epoch_seconds

COUNT = 200


def batches(seconds: float, **resources: float) -> list[list[Phase]]:
    return [[Phase(seconds=seconds, **resources)] for _ in range(COUNT)]


def test_without_workers_an_epoch_is_the_sum():
    loads, steps = batches(0.003), batches(0.002)
    assert epoch_seconds(loads, steps, Machinery(workers=0, cores=2)) == pytest.approx(1.0)


@pytest.mark.parametrize(("load_s", "step_s", "workers"), [(0.006, 0.002, 2), (0.003, 0.002, 4)])
def test_with_plenty_of_cores_the_slower_side_sets_the_pace(load_s, step_s, workers):
    seconds = epoch_seconds(batches(load_s), batches(step_s), Machinery(workers=workers))
    pace_s = max(step_s, load_s / workers)
    assert seconds == pytest.approx(COUNT * pace_s, abs=2 * workers * load_s)
    assert seconds >= COUNT * pace_s


def test_on_one_core_workers_gain_nothing():
    machinery = Machinery(workers=4, cores=1)
    seconds = epoch_seconds(batches(0.003), batches(0.002), machinery)
    assert seconds == pytest.approx(COUNT * 0.005)


def test_waits_overlap_on_one_core():
    machinery = Machinery(workers=2, cores=1)
    seconds = epoch_seconds(batches(0.006, cores=0), batches(0.002), machinery)
    assert seconds == pytest.approx(COUNT * 0.003, rel=0.03)


def test_threads_that_need_the_lock_take_turns():
    machinery = Machinery(workers=2, cores=8)
    locked = epoch_seconds(batches(0.003, lock=1), batches(0.001, lock=1), machinery)
    assert locked == pytest.approx(COUNT * 0.004)


@pytest.mark.parametrize("others", [0.0, 1.0, 4.0])
def test_other_programs_take_their_share_of_the_cores(others):
    """Two cores for a worker, the loop and other programs, all of which always want one each."""
    machinery = Machinery(workers=1, cores=2, other_cores=others)
    seconds = epoch_seconds(batches(0.004), batches(0.004), machinery)
    assert seconds == pytest.approx(COUNT * 0.004 * max(1.0, (2 + others) / 2), rel=0.01)


@pytest.mark.parametrize(
    ("power", "expected_s"),
    [
        # Three threads want two cores. If the step's threads did not wait for each other, both
        # would run at 2/3 of their speed.
        (0.0, 0.006),
        # In the worker's 6 ms the step does 6 / 1.5 ** 2 of its 4 ms, and then the rest alone.
        (1.0, 0.006 + 0.004 - 0.006 / 1.5**2),
        (20.0, 0.010),  # the step stands still
    ],
)
def test_step_in_two_threads_is_held_up_by_a_worker(power, expected_s):
    machinery = Machinery(workers=1, cores=2, crowded_power=power)
    seconds = epoch_seconds(batches(0.004), batches(0.004, cores=2), machinery)
    assert seconds == pytest.approx(COUNT * expected_s, rel=0.01)


@pytest.mark.parametrize("cores", [1.0, 1.25, 2.0])
def test_step_is_not_held_up_if_its_threads_have_cores(cores):
    machinery = Machinery(workers=1, cores=3, crowded_power=20.0)
    seconds = epoch_seconds(batches(0.004), batches(0.004, cores=cores), machinery)
    assert seconds == pytest.approx(COUNT * 0.004, rel=0.01)


def test_workers_that_mostly_wait_hold_up_no_threads():
    """A worker that computes in a tenth of its time stops the step for a tenth of it at most."""
    machinery = Machinery(workers=1, cores=2, crowded_power=WORST_CROWDED_POWER)
    loads, steps = batches(0.004, cores=0.1), batches(0.004, cores=2)
    seconds = epoch_seconds(loads, steps, machinery)
    assert seconds == pytest.approx(COUNT * 0.004 / 0.9, rel=0.02)


@pytest.mark.parametrize("prefetch", [1, 2, 8])
def test_a_slow_batch_is_hidden_only_as_far_as_others_are_ahead(prefetch):
    slow_s, step_s, every = 0.020, 0.002, 20
    loads = [
        [Phase(seconds=slow_s if k % every == every - 1 else 0.0, cores=0)] for k in range(COUNT)
    ]
    seconds = epoch_seconds(loads, batches(step_s), Machinery(workers=1, prefetch=prefetch))
    stall_s = max(0.0, slow_s - prefetch * step_s)
    assert seconds == pytest.approx(COUNT * step_s + COUNT / every * stall_s, rel=0.02)


def test_the_start_of_workers_is_added_once():
    machinery = Machinery(workers=2, start_s=0.05)
    slow = epoch_seconds(batches(0.0), batches(0.002), machinery)
    assert slow == pytest.approx(0.05 + COUNT * 0.002)


def test_batches_of_one_worker_stay_in_order():
    """Every second batch is slow: with two workers one of them has all the work."""
    loads = [[Phase(seconds=0.008 if k % 2 else 0.0, cores=0)] for k in range(COUNT)]
    seconds = epoch_seconds(loads, batches(0.0), Machinery(workers=2))
    assert seconds == pytest.approx(COUNT / 2 * 0.008, rel=0.02)
