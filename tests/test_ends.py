"""Ends are truthful: however a sweep ends, what finished is kept, and nothing stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import QUICK, SMALL, fastloop, fill, results, runs, typed
from options import MYDATASET, REPOSITORY

pytestmark = pytest.mark.slow
TRACKED = (*QUICK, "tracker=mlflow")


ENDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]


def as_from_a_terminal() -> None:
    """No signal is ignored, as one is that a shell starts in the background."""
    for sign in ENDS[:3]:
        signal.signal(sign, signal.SIG_DFL)


def started(*arguments: str, cwd: Path, process_group: int | None = None) -> psutil.Popen:
    """The command, running."""
    return psutil.Popen(
        [sys.executable, "-m", "fastloop.run", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
        process_group=process_group,
    )


def wait_for(condition, command: psutil.Popen) -> None:
    while not condition():
        assert command.poll() is None, command.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize("sign", ENDS, ids=lambda sign: sign.name)
def test_however_the_command_ends_finished_trials_are_kept_and_no_run_stays_open(
    tmp_path, database, sign
):
    shm = set(os.listdir("/dev/shm"))
    command = started(*MYDATASET, "trials=1000", "benchmark=traversal", cwd=tmp_path)
    wait_for(lambda: any(result.trials for result in results(tmp_path)), command)
    processes = command.children(recursive=True)
    command.send_signal(sign)
    said = command.communicate()[1]
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    while not set(os.listdir("/dev/shm")) <= shm:  # other tests beside this one come and go
        time.sleep(0.1)
    assert "Traceback" not in said
    (result,) = results(tmp_path)
    assert result.trials
    if sign != signal.SIGKILL:
        assert command.returncode == 128 + sign
        assert said.count("\n") == 1
        assert (result.status, result.status_reason[:10]) == ("KILLED", "SystemExit")
        assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]
    else:
        again = fastloop(*TRACKED, cwd=tmp_path)
        assert again.returncode == 0, again.stderr  # no lock is left
        assert sorted(run.info.status for run in runs(tmp_path)) == ["FINISHED", "KILLED"]


@pytest.mark.parametrize("isolation", ["forkserver", "spawn"])
def test_ctrl_c_while_the_first_trial_imports_is_one_line(tmp_path, isolation):
    command = started(*QUICK, f"launcher.isolation={isolation}", cwd=tmp_path, process_group=0)
    large = 40 << 20  # neither a Python that has imported nothing yet nor the tracker of resources
    wait_for(lambda: any(one.memory_info().rss > large for one in command.children()), command)
    os.killpg(command.pid, signal.SIGINT)
    assert command.communicate()[1].count("\n") == 1
    assert command.returncode == 128 + signal.SIGINT


def test_a_signal_while_a_module_of_the_users_is_imported_is_no_fault_of_it(tmp_path):
    (tmp_path / "mine.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    command = started(*QUICK, "dataset._target_=mine.Data", cwd=tmp_path)
    assert command.communicate()[1] == "interrupted: finished trials are kept\n"
    assert command.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGHUP], ids=lambda sign: sign.name)
def test_it_ends_as_killed_also_where_its_terminal_is_gone(tmp_path, database, sign):
    command = started(*TRACKED, "trials=1000", cwd=tmp_path)
    wait_for(lambda: any(result.trials for result in results(tmp_path)), command)
    command.stdout.close()
    command.stderr.close()
    command.send_signal(sign)
    command.wait()
    assert [result.status for result in results(tmp_path)] == ["KILLED"]
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]


def test_a_second_interrupt_does_not_cut_short_how_the_first_is_recorded(tmp_path, database):
    command = started(*MYDATASET, "trials=1000", "benchmark=traversal", cwd=tmp_path)
    wait_for(lambda: any(result.trials for result in results(tmp_path)), command)
    for _ in range(5):
        command.send_signal(signal.SIGINT)
        time.sleep(0.05)
    said = command.communicate()[1]
    assert command.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]


def test_a_command_that_may_hang_up_does_not_end_with_its_terminal(tmp_path):
    program = "import signal, runpy; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    program += "runpy.run_module('fastloop.run', run_name='__main__')"
    command = psutil.Popen([sys.executable, "-c", program, *QUICK, "trials=3"], cwd=tmp_path)
    wait_for(lambda: bool(results(tmp_path)), command)
    command.send_signal(signal.SIGHUP)
    assert command.wait() == 0
    assert len(results(tmp_path)[0].trials) == 3


def test_a_trial_that_is_killed_is_a_row_and_the_others_go_on(tmp_path):
    command = started("-m", "loader=raw,np_memmap", *QUICK, "trials=8", cwd=tmp_path)

    def trials_process():
        below = [
            one for one in command.children(recursive=True) if "forkserver" in str(one.cmdline())
        ]
        return [one for server in below for one in server.children()]

    wait_for(lambda: any(result.trials for result in results(tmp_path)), command)
    while True:
        try:
            trials_process()[0].kill()
            break
        except (IndexError, psutil.Error):
            assert command.poll() is None
    out, _ = command.communicate()
    assert command.returncode == 1
    failed = [result for result in results(tmp_path) if result.status == "FAILED"]
    assert len(failed) == 1
    # the kernel counts what it ends for want of memory, and another test may provoke that meanwhile
    reasons = ("killed by SIGKILL", "the kernel killed the trial's process")
    assert any(one in failed[0].status_reason for one in reasons)
    assert any(one in " ".join(out.split()) for one in reasons)
    assert [len(r.trials) for r in results(tmp_path) if r.status == "FINISHED"] == [8]


BROKEN = """
import sys
from contextlib import contextmanager
from fastloop.loaders.raw import Raw

class Leaving(Raw):
    @contextmanager
    def open(self, prepared, plan):
        sys.exit(7)
        yield

class Failing(Raw):
    @contextmanager
    def open(self, prepared, plan):
        raise ValueError("no such column: x")
        yield
"""


@pytest.mark.parametrize(
    ("loader", "reason"),
    [("Leaving", "exit status 7"), ("Failing", "ValueError: no such column: x")],
)
def test_a_loader_of_ones_own_that_ends_badly(tmp_path, database, loader, reason):
    (tmp_path / "own.py").write_text(BROKEN)
    done = fastloop(f"loader._target_=own.{loader}", *SMALL, cwd=tmp_path)
    assert done.returncode == 1
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    (result,) = results(tmp_path)
    assert (result.status, result.trials) == ("FAILED", [])
    (run,) = runs(tmp_path)
    assert run.info.status == "FAILED"
    assert reason in run.data.tags["status_reason"]
    if loader == "Failing":
        (details,) = tmp_path.glob("outputs/20*/*/*/traceback.txt")
        assert 'raise ValueError("no such column: x")' in details.read_text()
        assert str(details) in done.stderr


def test_a_trial_that_the_kernel_ends_for_want_of_memory_is_out_of_memory(tmp_path, memory_group):
    (tmp_path / "own.py").write_text(
        BROKEN.replace('raise ValueError("no such column: x")', "import torch; torch.ones(1 << 30)")
    )
    command = [sys.executable, "-m", "fastloop.run", "loader._target_=own.Failing", *QUICK]
    procs = str(memory_group(1200) / "cgroup.procs")
    join = f"import os; open({procs!r}, 'w').write(str(os.getpid()))\n"
    join += f"os.execv({sys.executable!r}, {command!r})"
    done = subprocess.run(
        [sys.executable, "-c", join], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("out of memory: the kernel killed"), done.stderr
    assert results(tmp_path)[0].status_reason.startswith("out of memory: ")


def test_a_disk_that_fills_between_trials_ends_in_one_line_and_keeps_what_is_written(
    tmp_path, small_disk
):
    command = psutil.Popen(
        [sys.executable, "-m", "fastloop.run", *QUICK, "trials=1000"],
        cwd=tmp_path,
        env=os.environ | {"FASTLOOP_OUTPUTS": str(small_disk)},
        stderr=subprocess.PIPE,
        text=True,
    )
    (tmp_path / "outputs").symlink_to(small_disk)
    wait_for(lambda: any(result.trials for result in results(tmp_path)), command)
    fill(small_disk)
    said = command.communicate()[1]
    assert command.returncode == 1
    assert "Traceback" not in said
    assert "No space left on device" in said
    assert results(tmp_path)[0].trials


def lost(tmp_path: Path, *arguments: str, **environment: str) -> None:
    """Run with a tracker that can't be reached; nothing measured is lost; record it later."""
    done = fastloop("-m", "loader=raw,preload", *arguments, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert [result.status for result in results(tmp_path)] == ["FINISHED", "FINISHED"]
    assert done.stderr.count("the tracker is lost") == 1  # said once, and waited for once
    assert "Traceback" not in done.stderr
    assert "preload" in done.stdout
    (folder,) = tmp_path.glob("outputs/20*/*")
    assert f"later:  python -m fastloop.record {folder}" in done.stdout


def test_a_server_that_refuses_loses_nothing_and_is_told_later(tmp_path, database):
    lost(tmp_path, *TRACKED, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    (folder,) = tmp_path.glob("outputs/20*/*")
    for said in ("raw mydataset, 1 trials", "is in the tracker already"):
        done = typed(str(folder), cwd=tmp_path, module="fastloop.record")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    assert [run.info.status for run in runs(tmp_path)] == ["FINISHED", "FINISHED"]
    assert all(run.data.metrics["traversal/seconds_mean"] > 0 for run in runs(tmp_path))


def test_a_server_that_never_answers_is_waited_for_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        lost(tmp_path, *TRACKED, MLFLOW_TRACKING_URI=uri, MLFLOW_HTTP_REQUEST_TIMEOUT="1")


def test_a_locked_database_loses_nothing(tmp_path, database):
    assert fastloop(*TRACKED, cwd=tmp_path).returncode == 0
    (first,) = tmp_path.glob("outputs/20*/*")
    first.rename(tmp_path / "first")
    locked = sqlite3.connect(database)
    locked.execute("BEGIN EXCLUSIVE")
    lost(tmp_path, *TRACKED)
    locked.rollback()
    locked.close()


def test_a_database_that_is_read_only_loses_nothing(tmp_path, small_disk, empty_database):
    shutil.copy(empty_database, small_disk)
    uri = f"sqlite:///{small_disk}/mlflow.db"
    made = fastloop(*TRACKED, cwd=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert made.returncode == 0, made.stderr
    (tmp_path / "outputs").rename(tmp_path / "first")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    lost(tmp_path, *TRACKED, MLFLOW_TRACKING_URI=uri)


def test_two_first_starts_at_once_on_a_fresh_database_both_succeed(tmp_path):
    commands = [started(*TRACKED, "allow_concurrent=true", cwd=tmp_path) for _ in range(2)]
    for command in commands:
        out, err = command.communicate()
        assert command.returncode == 0, err
        assert err == ""
        assert "charts: " in out
    assert [run.info.status for run in runs(tmp_path)] == ["FINISHED", "FINISHED"]


def test_killed_at_random_moments_it_keeps_its_promises(tmp_path):
    """The short form of experiments/kills.md."""
    command = [sys.executable, str(REPOSITORY / "experiments" / "kills.py"), "2", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("exit status") >= 2
