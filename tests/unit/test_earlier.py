"""A trial after the first of its job: what it does not find out again, and what it still checks."""

from __future__ import annotations

import dishonest_loaders
import pytest
from commands import run_fastloop
from options import MYDATASET
from sweep_results import sweep_folder

from fastloop.core.limit import Limit, LimitOrigin
from fastloop.core.result_io import load
from fastloop.core.spans import now_ns
from fastloop.core.types import Invalid
from fastloop.processes.child_process import Call, start_child
from fastloop.trial.earlier_trials import EarlierFindings, find_earlier, limits_of
from fastloop.trial.shadow import run_shadow
from fastloop.trial.timed_trial import run_trial

SETTINGS = (*MYDATASET, f"epochs={dishonest_loaders.EPOCHS}", "batch_size=16")


@pytest.fixture
def make_job(prepared_job):
    def make(name: str, *overrides: str):
        return prepared_job(f"loader._target_=dishonest_loaders.{name}", *SETTINGS, *overrides)

    return make


def test_later_trial_compares_no_epoch_and_times_one_window(make_job):
    job, prepared = make_job("honest", "benchmark=traversal")
    first = run_trial(job, prepared, 0, now_ns())
    assert first.calls.compares_data
    assert first.calls.windows["traversal"][0] == 1
    earlier = find_earlier([first], {})
    assert (earlier.may_be_unread, earlier.limits) == (first.calls.unread, {})
    second = run_trial(job, prepared, 1, now_ns(), earlier)
    assert not second.calls.compares_data
    assert second.calls.windows["traversal"][0] == first.benchmarks["traversal"].repeats
    assert second.benchmarks["traversal"].samples == first.benchmarks["traversal"].samples


def test_window_that_an_earlier_trial_makes_too_short_is_repeated(make_job):
    job, prepared = make_job("honest", "benchmark=traversal", "min_window_s=0.2")
    earlier = EarlierFindings(may_be_unread=False, repeats={"traversal": 2})
    trial = run_trial(job, prepared, 1, now_ns(), earlier)
    measured = trial.benchmarks["traversal"]
    assert trial.calls.windows["traversal"] == [2, measured.repeats]
    assert measured.repeats > 2


def test_limit_of_the_round_is_used_and_no_batch_replayed(prepared_job):
    job, prepared = prepared_job("loader=np_memmap", *SETTINGS, "benchmark=all")
    first = run_trial(job, prepared, 0, now_ns())
    assert first.calls.replays == ["training"]
    known = limits_of(first)
    assert len(known) == 2
    marked = {key: Limit(samples_per_s=1.5, origin=each.origin) for key, each in known.items()}
    second = run_trial(job, prepared, 1, now_ns(), find_earlier([first], marked))
    assert second.calls.replays == []
    assert {each.limit_samples_per_s for each in second.benchmarks.values()} == {1.5}
    other = {"of other work": Limit(samples_per_s=1.5, origin=LimitOrigin(kind="rows"))}
    third = run_trial(job, prepared, 2, now_ns(), find_earlier([first], other))
    assert third.calls.replays == ["training"]


@pytest.mark.heavy
@pytest.mark.parametrize("changed", ["batch_size=8", "model.hidden=8", "dataset.count=80"])
def test_limits_of_other_work_have_other_keys(prepared_job, changed):
    keys = []
    for overrides in ((), (changed,)):
        settings = ("loader=np_memmap", *SETTINGS, "benchmark=all", "min_window_s=0", *overrides)
        job, prepared = prepared_job(*settings)
        trial = run_trial(job, prepared, 0, now_ns())
        keys.append({name: each.limit_key for name, each in trial.benchmarks.items()})
    assert keys[0]["training"] != keys[1]["training"] or "count" in changed
    assert keys[0]["traversal"] != keys[1]["traversal"] or "model" in changed


def test_loader_that_delivers_too_little_in_later_trials_is_invalid_there(make_job):
    job, prepared = make_job("half_in_later_trials", "benchmark=traversal")
    first = run_trial(job, prepared, 0, now_ns())
    with pytest.raises(Invalid, match="101 samples in epoch 0 of its window, not 203"):
        run_trial(job, prepared, 1, now_ns(), find_earlier([first], {}))


def test_loader_that_delivers_other_samples_in_later_trials_is_invalid_in_their_shadow(make_job):
    job, prepared = make_job("cached_in_later_trials", "benchmark=traversal")
    first = run_trial(job, prepared, 0, now_ns())
    second = run_trial(job, prepared, 1, now_ns(), find_earlier([first], {}))
    call = Call(function=run_shadow, args=(job, prepared, 1, second.calls))
    with start_child("forkserver", call) as child:
        child.receiver.poll(None)
        failure = child.receive_outcome().failure
    assert failure is not None
    assert "the samples or their labels are not the dataset's" in failure.message


@pytest.mark.heavy
def test_jobs_of_a_round_share_the_limit_of_their_kind_of_work(tmp_path):
    settings = ("benchmark=traversal", "trials=2", "min_window_s=0", "epochs=1", "report=false")
    run_fastloop("-m", "loader=np_memmap,hdf5", "tracker=none", *settings, cwd=tmp_path)
    memmap, hdf5 = (load(sweep_folder(tmp_path) / number) for number in ("0", "1"))
    limits = [
        [trial.benchmarks["traversal"].limit_samples_per_s for trial in job.trials]
        for job in (memmap, hdf5)
    ]
    assert limits[0] == limits[1]
    assert len({*limits[0]}) == 2
    assert [trial.calls.compares_data for trial in memmap.trials] == [True, False]
