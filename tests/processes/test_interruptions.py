"""Interrupted sweeps: finished trials are kept, the status is correct, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import fork_server
import psutil
import pytest
from commands import (
    QUICK,
    SMALL,
    fill_disk,
    results,
    run_fastloop,
    runs,
    start_fastloop,
)
from options import MYDATASET, REPOSITORY
from shared_memory import mapped_names

pytestmark = pytest.mark.slow
TRACKED = (*QUICK, "tracker=mlflow")


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]


def reset_signal_handlers() -> None:
    """Let no signal be ignored, as SIGINT is in background processes of a shell."""
    for sign in SIGNALS[:3]:
        signal.signal(sign, signal.SIG_DFL)


def start_command(*arguments: str, cwd: Path, process_group: int | None = None) -> psutil.Popen:
    """Start the command without waiting for its end."""
    return psutil.Popen(
        [sys.executable, "-m", "fastloop.run", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=reset_signal_handlers,
        process_group=process_group,
    )


def wait_for(condition, command: psutil.Popen) -> None:
    while not condition():
        assert command.poll() is None, command.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize(
    "sign",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.heavy),
        pytest.param(signal.SIGKILL, marks=pytest.mark.heavy),
    ],
    ids=lambda sign: sign.name,
)
def test_ended_command_keeps_finished_trials_and_closes_its_run(tmp_path, database, sign):
    command = start_fastloop(*MYDATASET, "trials=1000", "benchmark=traversal", cwd=tmp_path)
    command.wait_until(lambda: any(result.trials for result in results(tmp_path)))
    processes = command.process.children(recursive=True)
    shared = mapped_names([command.pid, *(process.pid for process in processes)])
    command.process.send_signal(sign)
    process = command.wait()
    assert psutil.wait_procs(processes, timeout=120)[1] == []
    while shared & set(os.listdir("/dev/shm")):
        time.sleep(0.1)
    assert "Traceback" not in process.stderr
    (result,) = results(tmp_path)
    assert result.trials
    if sign != signal.SIGKILL:
        assert process.returncode == 128 + sign
        plan, figures, *progress, message = process.stderr.splitlines()
        assert plan.startswith("1 job x 1000 trials")
        assert ", from one trial: traversal " in figures
        (sweep,) = tmp_path.glob("outputs/20*/*")
        kept, again = message.split("; ")
        assert kept.endswith(f": finished trials are kept in {sweep.relative_to(tmp_path)}")
        assert again == f"the same command with resume={sweep.relative_to(tmp_path)} continues"
        assert all(re.match(r"round \d+ of 1000: ", line) for line in progress)
        assert (result.status, result.status_reason[:10]) == ("KILLED", "SystemExit")
        assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]
    else:
        again = run_fastloop(*TRACKED, cwd=tmp_path)
        assert again.returncode == 0, again.stderr  # no lock is left behind
        assert sorted(run.info.status for run in runs(tmp_path)) == ["FINISHED", "KILLED"]


@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("forkserver", marks=pytest.mark.heavy),
        pytest.param("spawn", marks=pytest.mark.heavy),
    ],
)
def test_ctrl_c_during_the_first_imports_prints_one_line(tmp_path, isolation):
    command = start_command(
        *QUICK, f"launcher.isolation={isolation}", cwd=tmp_path, process_group=0
    )
    large = 40 << 20  # more than a Python without imports or the resource tracker

    def has_large_child() -> bool:
        with contextlib.suppress(psutil.Error):  # one that has ended while it was looked at
            return any(child.memory_info().rss > large for child in command.children())
        return False

    wait_for(has_large_child, command)
    os.killpg(command.pid, signal.SIGINT)
    assert_only_line(command.communicate()[1], "interrupted")
    assert command.returncode == 128 + signal.SIGINT


def assert_only_line(printed: str, message: str) -> None:
    """Assert that the message is printed alone, or below the line on what the command will do."""
    *plan, last = printed.splitlines()
    assert last == message
    assert len(plan) <= 1
    assert all(" x " in line for line in plan)


@pytest.mark.heavy
def test_signal_during_import_of_user_code_that_swallows_it_ends_the_command(tmp_path):
    swallowed = "try:\n    os.kill(os.getpid(), 2)\nexcept BaseException:\n    pass\n"
    program = f"import os\n{swallowed}Data = list\n"
    (tmp_path / "mine.py").write_text(program)
    command = start_command(*QUICK, "dataset._target_=mine.Data", cwd=tmp_path)
    assert_only_line(command.communicate()[1], "interrupted")
    assert command.returncode == 128 + signal.SIGINT


@pytest.mark.heavy
@pytest.mark.nightly
def test_signal_without_a_terminal_records_status_killed(tmp_path, database):
    command = start_command(*TRACKED, "trials=1000", cwd=tmp_path)
    wait_for(lambda: any(result.trials for result in results(tmp_path)), command)
    command.stdout.close()
    command.stderr.close()
    command.send_signal(signal.SIGHUP)
    assert command.wait() == 128 + signal.SIGHUP
    assert [result.status for result in results(tmp_path)] == ["KILLED"]
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]


@pytest.mark.heavy
def test_repeated_interrupts_do_not_stop_the_recording_of_the_first(tmp_path, database):
    command = start_fastloop(*MYDATASET, "trials=1000", "benchmark=traversal", cwd=tmp_path)
    command.wait_until(lambda: any(result.trials for result in results(tmp_path)))
    for _ in range(5):
        with contextlib.suppress(psutil.NoSuchProcess):
            command.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    process = command.wait()
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in process.stderr
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]


@pytest.mark.heavy
def test_command_under_nohup_ignores_sighup(tmp_path):
    program = tmp_path / "nohup.py"
    program.write_text(
        "import runpy, signal\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "    runpy.run_module('fastloop.run', run_name='__main__')\n"
    )
    arguments = (*QUICK, "trials=3")
    command = fork_server.start(str(program), arguments, tmp_path, dict(os.environ))
    command.wait_until(lambda: bool(results(tmp_path)))
    command.process.send_signal(signal.SIGHUP)
    assert command.wait().returncode == 0
    assert len(results(tmp_path)[0].trials) == 3


@pytest.mark.heavy
def test_killed_trial_fails_its_job_and_the_others_continue(tmp_path):
    # The windows are long, so that a killed trial is hardly one that has sent its result already.
    settings = "trials=4", "min_window_s=0.3"
    command = start_fastloop("-m", "loader=raw,np_memmap", *QUICK, *settings, cwd=tmp_path)

    def kill_trial() -> bool:
        with contextlib.suppress(psutil.Error):
            for child in command.process.children():
                for trial in child.children():  # of the forkserver; no other child has any
                    trial.kill()
                    return True
        return False

    command.wait_until(lambda: any(result.trials for result in results(tmp_path)))
    command.wait_until(kill_trial)
    process = command.wait()
    assert process.returncode == 1
    failed = [result for result in results(tmp_path) if result.status == "FAILED"]
    assert len(failed) == 1
    # the kernel's count of out-of-memory kills may also rise because of a concurrent test
    reasons = ("killed by SIGKILL", "the kernel killed the trial's process")
    assert any(reason in failed[0].status_reason for reason in reasons)
    assert any(reason in " ".join(process.stdout.split()) for reason in reasons)
    assert [len(result.trials) for result in results(tmp_path) if result.status == "FINISHED"] == [
        4
    ]


FAILING_LOADERS = """
import sys
from contextlib import contextmanager
from fastloop.options.loader.raw import RawLoader

class Leaving(RawLoader):
    @contextmanager
    def open(self, prepared, plan):
        sys.exit(7)
        yield

class Failing(RawLoader):
    @contextmanager
    def open(self, prepared, plan):
        raise ValueError("no such column: x")
        yield
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("loader", "reason"),
    [("Leaving", "exit status 7"), ("Failing", "ValueError: no such column: x")],
)
def test_failure_of_a_user_loader_is_reported_with_its_reason(tmp_path, database, loader, reason):
    (tmp_path / "mine.py").write_text(FAILING_LOADERS)
    process = run_fastloop(f"loader._target_=mine.{loader}", *SMALL, cwd=tmp_path)
    assert process.returncode == 1
    assert reason in process.stderr
    assert process.stderr.count("\n") == 2  # the plan precedes it
    assert "Traceback" not in process.stderr
    (result,) = results(tmp_path)
    assert (result.status, result.trials) == ("FAILED", [])
    (run,) = runs(tmp_path)
    assert run.info.status == "FAILED"
    assert reason in run.data.tags["status_reason"]
    if loader == "Failing":
        (details,) = tmp_path.glob("outputs/20*/*/*/traceback.txt")
        assert 'raise ValueError("no such column: x")' in details.read_text()
        assert str(details) in process.stderr


GREEDY_LOADER = FAILING_LOADERS.replace(
    'raise ValueError("no such column: x")', "import torch; torch.ones(1 << 30)"
)
GREEDY_WORKERS = """
import torch

class Greedy:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info():
            torch.ones(1 << 30)
        return torch.zeros(2), 0
"""
LITTLE = ("epochs=1", "trials=1", "benchmark=traversal", "tracker=none", "report=false")


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (GREEDY_LOADER, ("loader._target_=mine.Failing", *QUICK)),
        (GREEDY_WORKERS, ("dataset._target_=mine.Greedy", "num_workers=1", *LITTLE)),
    ],
    ids=["trial", "worker"],
)
def test_process_killed_by_the_kernel_is_reported_as_out_of_memory(
    tmp_path, memory_group, code, arguments
):
    (tmp_path / "mine.py").write_text(code)
    command = [sys.executable, "-m", "fastloop.run", *arguments]
    procs = str(memory_group(1200) / "cgroup.procs")
    join = f"import os; open({procs!r}, 'w').write(str(os.getpid()))\n"
    join += f"os.execv({sys.executable!r}, {command!r})"
    process = subprocess.run(
        [sys.executable, "-c", join], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1
    assert "\nout of memory: the kernel killed" in f"\n{process.stderr}"
    assert results(tmp_path)[0].status_reason.startswith("out of memory: ")


@pytest.mark.heavy
def test_full_disk_between_trials_keeps_the_written_results(tmp_path, small_disk):
    arguments = (*QUICK, "trials=1000")
    command = start_fastloop(*arguments, cwd=tmp_path, FASTLOOP_OUTPUTS=str(small_disk))
    (tmp_path / "outputs").symlink_to(small_disk)
    command.wait_until(lambda: any(result.trials for result in results(tmp_path)))
    fill_disk(small_disk)
    process = command.wait()
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert "No space left on device" in process.stderr
    assert results(tmp_path)[0].trials


def assert_nothing_is_lost(tmp_path: Path, *arguments: str, **environment: str) -> str:
    """Run a sweep whose tracker is unreachable; assert that the results are kept for later. Returns
    what the command printed about it."""
    process = run_fastloop("-m", "loader=raw,preload", *arguments, cwd=tmp_path, **environment)
    assert process.returncode == 0, process.stderr
    assert [result.status for result in results(tmp_path)] == ["FINISHED", "FINISHED"]
    assert process.stderr.count("the tracker is lost") == 1  # reported once, so waited for once
    assert "Traceback" not in process.stderr
    assert "preload" in process.stdout
    (folder,) = tmp_path.glob("outputs/20*/*")
    assert f"later:  fastloop log {folder}" in process.stdout
    return process.stderr


@pytest.mark.heavy
def test_log_leaves_a_sweep_alone_that_is_still_measured(tmp_path):
    arguments = (*QUICK, "trials=1000", "allow_concurrent=true")
    command = start_fastloop(*arguments, cwd=tmp_path)
    command.wait_until(lambda: any(result.trials for result in results(tmp_path)))
    (folder,) = tmp_path.glob("outputs/20*/*")
    process = run_fastloop(str(folder), cwd=tmp_path, command="log")
    assert process.returncode == 0, process.stderr
    assert "still measured" in process.stdout
    assert results(tmp_path)[0].status == "RUNNING"
    command.process.send_signal(signal.SIGKILL)
    command.wait()
    process = run_fastloop(str(folder), cwd=tmp_path, command="log")
    assert "still measured" not in process.stdout
    assert results(tmp_path)[0].status == "KILLED"


@pytest.mark.heavy
@pytest.mark.nightly
def test_refusing_tracking_server_loses_nothing_and_is_logged_later(
    tmp_path, database, empty_database
):
    line = assert_nothing_is_lost(tmp_path, *TRACKED, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert "still written to files: MLFLOW_TRACKING_URI=http://127.0.0.1:9: " in line
    (folder,) = tmp_path.glob("outputs/20*/*")
    for message in ("raw mydataset, 1 trials", "already in the tracker"):
        process = run_fastloop(str(folder), cwd=tmp_path, command="log")
        assert process.returncode == 0, process.stderr
        assert message in process.stdout
    assert [run.info.status for run in runs(tmp_path)] == ["FINISHED", "FINISHED"]
    assert all(run.data.metrics["traversal/seconds_mean"] > 0 for run in runs(tmp_path))
    shutil.copy(empty_database, database)  # the runs are lost
    for message in ("raw mydataset, 1 trials", "already in the tracker"):
        assert message in run_fastloop(str(folder), cwd=tmp_path, command="log").stdout


@pytest.mark.heavy
def test_silent_tracking_server_is_waited_for_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert_nothing_is_lost(
            tmp_path, *TRACKED, MLFLOW_TRACKING_URI=uri, MLFLOW_HTTP_REQUEST_TIMEOUT="1"
        )


@pytest.mark.heavy
@pytest.mark.nightly
def test_locked_tracking_database_loses_nothing(tmp_path, database):
    assert run_fastloop(*TRACKED, cwd=tmp_path).returncode == 0
    (first,) = tmp_path.glob("outputs/20*/*")
    first.rename(tmp_path / "first")
    locked = sqlite3.connect(database)
    locked.execute("BEGIN EXCLUSIVE")
    assert_nothing_is_lost(tmp_path, *TRACKED)
    locked.rollback()
    locked.close()


@pytest.mark.heavy
@pytest.mark.nightly
def test_read_only_tracking_database_loses_nothing(tmp_path, small_disk, empty_database):
    shutil.copy(empty_database, small_disk)
    uri = f"sqlite:///{small_disk}/mlflow.db"
    process = run_fastloop(*TRACKED, cwd=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert process.returncode == 0, process.stderr
    (tmp_path / "outputs").rename(tmp_path / "first")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_nothing_is_lost(tmp_path, *TRACKED, MLFLOW_TRACKING_URI=uri)


@pytest.mark.heavy
def test_concurrent_first_commands_share_a_fresh_database(tmp_path):
    commands = [start_fastloop(*TRACKED, "allow_concurrent=true", cwd=tmp_path) for _ in range(2)]
    for process in [command.wait() for command in commands]:
        assert process.returncode == 0, process.stderr
        plan, progress = process.stderr.splitlines()
        assert plan.startswith("1 job x ")
        assert progress.startswith("round 1 of 1: ")
        assert "charts: " in process.stdout
    assert [run.info.status for run in runs(tmp_path)] == ["FINISHED", "FINISHED"]


@pytest.mark.soak
def test_sweeps_killed_at_random_moments_lose_nothing(is_soak):
    """The short form of experiments/kills."""
    kills = "6" if is_soak else "1"
    small = () if is_soak else ("dataset.count=1000", "min_window_s=0", "loader=raw,np_memmap")
    command = [sys.executable, "-m", "experiments.kills.run", kills, "1", *small]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count("exit status") >= int(kills)
