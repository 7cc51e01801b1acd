"""What a command says first: its jobs, trials and benchmarks, and about how long that takes."""

from __future__ import annotations

import sys
from contextlib import suppress
from subprocess import run

import psutil
import pytest

from fastloop.config.composed_values import compose_values
from fastloop.core.auto_trials import LOOKS
from fastloop.core.number_text import show_about, show_duration
from fastloop.sweep.forecast import (
    describe_explanation,
    describe_plan,
    forecast_seconds,
    plan_job,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.4, "4 s"), (59.6, "1 min"), (80, "1 min 20 s"), (3600, "1 h"), (7510, "2 h 5 min")],
)
def test_durations_have_at_most_two_units(seconds, text):
    assert show_duration(seconds) == text


def test_rough_durations_are_rounded():
    assert [show_about(seconds) for seconds in (1, 82, 1234)] == ["5 s", "1 min 20 s", "21 min"]


def test_plan_names_jobs_trials_and_benchmarks():
    jobs = [compose_values(f"loader={name}") for name in ("raw", "preload")]
    plan = describe_plan(jobs)
    assert plan.startswith("2 jobs x 5 trials, 2 benchmarks: about ")
    one = [compose_values("benchmark=traversal", "trials=1")]
    assert describe_plan(one).startswith("1 job x 1 trial, 1 benchmark: about ")
    assert describe_plan([*jobs, *one]).startswith("3 jobs x 1 or 5 trials: about ")


def test_forecast_grows_with_trials_and_windows():
    plain, more, longer = (
        forecast_seconds([plan_job(compose_values("benchmark=traversal", each))])
        for each in ("trials=5", "trials=10", "min_window_s=3")
    )
    assert plain is not None
    assert more is not None
    assert longer is not None
    assert longer > more > plain


def test_number_of_trials_that_is_not_known_beforehand_has_a_longest_time():
    (plan,) = [describe_plan([compose_values() | {"trials": "auto"}])]
    assert plan.startswith("1 job x auto trials, 2 benchmarks: as many as decide the ranking")
    assert "2 min" in plan
    (bounded,) = [describe_plan([compose_values("seconds=20") | {"trials": "auto"}])]
    assert "25 s" in bounded
    jobs = [compose_values("seconds=20") | {"trials": "auto"}] * 2
    assert f"or twice that if {LOOKS[0]} rounds take longer" in describe_plan(jobs)


def test_plan_is_told_before_torch_is_imported():
    """Composing alone must not import what takes seconds."""
    code = (
        "import sys; import fastloop.config.compose as compose;"
        "from fastloop.sweep.forecast import describe_plan;"
        "line = compose.read_command_line(['loader=raw,preload', '-m']);"
        "jobs = [each.values for each in compose.compose_combinations(line)];"
        "print(describe_plan(jobs));"
        "print([each for each in ('torch', 'mlflow', 'pydantic', 'numpy') if each in sys.modules])"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plan, imported = done.stdout.splitlines()
    assert plan.startswith("2 jobs x 5 trials")
    assert imported == "[]"


@pytest.mark.parametrize(("device", "passes"), [("cpu", 57), ("cuda", 67)])
def test_plan_of_an_explanation_names_rounds_and_passes(device, passes):
    plan = describe_explanation([compose_values("trials=5", "try=3", f"device={device}")])
    assert plan.startswith(f"1 job is explained in 5 rounds, {passes} passes or so: about ")


PRELOADED = """
import sys
from fastloop.processes.start_method import start_server_early

if __name__ == "__main__":
    start_server_early(["fastloop.trial.tasks", "fastloop.options.store.tensordict"])
    assert "torch" not in sys.modules
    from fastloop.processes.child_process import Call, start_child
    import preloaded_names

    with start_child("forkserver", Call(function=preloaded_names.tell, args=())) as child:
        child.receiver.poll(None)
        print(child.receive_outcome().value)
"""
TELL = """
import os
import sys

def tell():
    from fastloop.processes import forkserver_hook

    wanted = ("torch", "tensordict", "fastloop.trial.timed_trial", "fastloop.trial.shadow")
    is_server = forkserver_hook.IMPORTED_BY == os.getppid()
    return is_server, *(name in forkserver_hook.PRELOADED for name in wanted)
"""


@pytest.mark.heavy
def test_server_that_is_started_early_preloads_what_trials_need(tmp_path):
    (tmp_path / "main.py").write_text(PRELOADED)
    (tmp_path / "preloaded_names.py").write_text(TELL)
    command = [sys.executable, "main.py"]
    done = run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "(True, True, True, True, True)\n", done.stderr


def test_server_that_is_not_needed_ends_with_its_command():
    code = (
        "from fastloop.processes.start_method import start_server_early;"
        "from multiprocessing import forkserver;"
        "start_server_early([]);"
        "print(forkserver._forkserver._forkserver_pid)"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()  # ends at once, not after importing torch
    assert not psutil.pid_exists(pid)
