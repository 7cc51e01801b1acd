"""`trials=auto` through the real command: killed, resumed, decided, with the default baseline."""

from __future__ import annotations

import shutil

import pytest
from commands import results, run_fastloop, run_until_killed
from options import SUPPORT

from fastloop.core.auto_trials import LOOKS

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
AUTO = (
    "-m",
    "loader=glob([raw,preload])",
    "dataset._target_=slow_stages.Samples",
    "+dataset.sleep_s=0.002",
    "batch_size=16",
    "benchmark=traversal",
    "torch_threads=1",
    "epochs=1",
    "min_window_s=0",
    "isolation=inline",
    "trials=auto",
    "seconds=200",
    "tracker=none",
    "report=false",
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """(folder, start times at the kill by job, the finished process)."""
    folder = tmp_path_factory.mktemp("auto")
    shutil.copy(SUPPORT / "slow_stages.py", folder)
    run_until_killed(AUTO, 4, folder)
    before = {each.name: [trial.started_ms for trial in each.trials] for each in results(folder)}
    process = run_fastloop(*AUTO, "resume=last", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder, before, process


def test_sweep_goes_on_until_a_look_decides_it(sweep):
    folder, _, process = sweep
    found = results(folder)
    assert {each.status for each in found} == {"FINISHED"}
    (count,) = {len(each.trials) for each in found}
    assert count in LOOKS
    assert count < LOOKS[-1]  # preload reads memory, raw sleeps for 0.13 s
    assert "preload is fastest" in " ".join(process.stdout.split())


def test_resumed_sweep_repeats_no_trial_and_continues_the_rounds(sweep):
    folder, before, _ = sweep
    after = {each.name: [trial.started_ms for trial in each.trials] for each in results(folder)}
    assert sum(map(len, before.values())) >= 4
    assert all(after[name][: len(old)] == old for name, old in before.items())
    numbers = {tuple(trial.number for trial in each.trials) for each in results(folder)}
    assert numbers == {tuple(range(len(next(iter(after.values())))))}


def test_raw_is_the_baseline_of_a_pattern_also_with_auto(sweep):
    _, _, process = sweep
    assert " times raw" in " ".join(process.stdout.split())
