"""Launchers: new processes start quickly, always end, and report their failures."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from child_processes import is_for_trials
from options import SUPPORT

from fastloop.core.launcher import RankTask
from fastloop.core.loading_settings import LoadingSettings
from fastloop.core.plan import Plan
from fastloop.core.types import Invalid, JobFailed, Unsupported
from fastloop.data.torch_epochs import torch_epochs
from fastloop.options.launcher.single import SingleLauncher
from fastloop.options.order.sequential import SequentialOrder

FORKSERVER = SingleLauncher(isolation="forkserver")
LAUNCHERS = [SingleLauncher(isolation=isolation) for isolation in ("forkserver", "spawn", "inline")]


def pid_and_arguments(*args):
    return os.getpid(), args


def import_state():
    from fastloop.processes import forkserver_hook

    return os.getpid(), forkserver_hook.IMPORTED_BY, forkserver_hook.PRELOADED


def fail(error):
    raise error


def die(sign):
    os.kill(os.getpid(), sign)


def leave(status):
    sys.exit(status)


def hang():
    time.sleep(600)


class StuckDataset:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        time.sleep(600)


class BrokenDataset:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise ValueError("sample 0 is broken")


class HugeDataset:
    """A Dataset with one sample that is larger than any memory."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.make(1 << 56)


def hang_with_a_worker():
    read_one(StuckDataset())


def read_one(samples, num_workers=1):
    loading = LoadingSettings(
        batch_size=1,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    plan = Plan(order=SequentialOrder(), seed=0, loading=loading)
    with torch_epochs(samples, plan) as epochs:
        return next(iter(epochs(0)))


def leave_running(*commands):
    """Start the commands in sessions of their own, and return without waiting for them."""
    return [subprocess.Popen(command, start_new_session=True).pid for command in commands]


def leave_one_and_die(file):
    """Write the process id of a command in a session of its own to the file, and end at once."""
    file.write_text(str(leave_running(["sleep", "600"])[0]))
    os.kill(os.getpid(), signal.SIGKILL)


def die_with_a_child():
    multiprocessing.get_context("fork").Process(target=hang).start()
    os.kill(os.getpid(), signal.SIGKILL)


def is_daemon_process():
    return multiprocessing.current_process().daemon


def fill(mib):
    tensor = torch.ones(mib << 18)
    time.sleep(0.5)
    return float(tensor[0])


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(
            launcher,
            id=launcher.isolation,
            # a spawned process imports torch
            marks=[pytest.mark.heavy] if launcher.isolation == "spawn" else [],
        )
        for launcher in LAUNCHERS
    ],
)
def test_call_returns_the_functions_result(launcher):
    pid, args = launcher.call(pid_and_arguments, 1, "two")
    assert args == (1, "two")
    assert (pid == os.getpid()) == (launcher.isolation == "inline")


@pytest.mark.heavy
def test_each_call_runs_in_a_new_process_that_may_have_children():
    assert FORKSERVER.call(pid_and_arguments)[0] != FORKSERVER.call(pid_and_arguments)[0]
    assert FORKSERVER.call(is_daemon_process) is False


@pytest.mark.heavy
def test_forkserver_preloads_torch_tensordict_and_fastloop(tmp_path):
    program = "import tensordict; "
    program += "print(*FORKSERVER.call(import_state), sep='\\n')"
    command = [sys.executable, write_program(tmp_path, program)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    pid, imported_by, preloaded = process.stdout.splitlines()
    assert imported_by != pid
    assert {"torch", "tensordict", "fastloop.trial.support"} <= set(
        re.findall(r"'([^']+)'", preloaded)
    )


def write_program(folder: Path, statement: str) -> str:
    """Path of a program that imports this module and executes the statement."""
    program = folder / "program.py"
    program.write_text(
        "import sys\n"
        f"sys.path[:0] = {[os.path.dirname(__file__), str(SUPPORT)]!r}\n"
        "from test_launcher import *\n"
        "import fastloop.trial.support\n"
        "if __name__ == '__main__':\n"
        f"    {statement}\n"
    )
    return str(program)


FAILURES = [
    (Unsupported("no such device"), "unsupported: no such device"),
    (Invalid("a sample is missing"), "invalid: a sample is missing"),
    (torch.OutOfMemoryError("CUDA out of memory"), "out of memory: CUDA out of memory"),
    (MemoryError(), "out of memory: MemoryError"),
    (OSError(12, "Cannot allocate memory"), "out of memory: [Errno 12] Cannot allocate memory"),
    (ValueError("first line\nsecond"), "ValueError: first line"),
]


@pytest.mark.parametrize(
    ("launcher", "error", "reason"),
    [
        (launcher, *failure)
        for launcher in LAUNCHERS
        # Each process of its own raises the same.
        for failure in (FAILURES if launcher.isolation == "inline" else FAILURES[-2:])
    ],
)
def test_failure_has_a_reason_and_a_traceback(launcher, error, reason):
    with pytest.raises(JobFailed) as caught:
        launcher.call(fail, error)
    assert str(caught.value) == reason
    assert "in fail" in caught.value.failure.details


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        (die, signal.SIGKILL, "killed by SIGKILL"),
        (die, signal.SIGTERM, "killed by SIGTERM"),
        (leave, 7, "exit status 7"),
    ],
)
def test_process_that_ends_without_a_result_is_reported(function, argument, reason):
    with pytest.raises(JobFailed, match=reason):
        FORKSERVER.call(function, argument)


@pytest.mark.heavy
def test_hanging_call_ends_after_the_timeout():
    with pytest.raises(JobFailed, match=r"^timeout: no result after 5 s: in hang "):
        FORKSERVER.call(hang, timeout_s=5)
    with pytest.raises(JobFailed, match=r"^timeout"):
        FORKSERVER.call_ranks(RankTask(function=hang), timeout_s=0.5, observed=True)


def living_descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.is_running()}


@pytest.mark.heavy
@pytest.mark.parametrize("function", [hang_with_a_worker, die_with_a_child])
def test_no_child_of_a_trial_outlives_it(function):
    FORKSERVER.call(pid_and_arguments)
    before = living_descendants()
    with pytest.raises(JobFailed):
        FORKSERVER.call(function, timeout_s=2)
    processes = [psutil.Process(pid) for pid in living_descendants() - before]
    assert psutil.wait_procs(processes, timeout=60)[1] == []


def test_worker_error_is_reported_by_its_last_line():
    with pytest.raises(
        JobFailed,
        match=r"^BadData: sample 0: ValueError: sample 0 is broken \(in a DataLoader worker\)$",
    ):
        FORKSERVER.call(read_one, BrokenDataset())


@pytest.mark.heavy
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("make", [torch.empty, np.empty], ids=["torch", "numpy"])
def test_failed_allocation_is_reported_as_out_of_memory(make, num_workers):
    message = "sample 0: .*a DataLoader worker" if num_workers else "llocate"
    with pytest.raises(JobFailed, match=f"^out of memory: .*{message}"):
        FORKSERVER.call(read_one, HugeDataset(make), num_workers)


def test_calls_create_no_named_temporary_files():
    folder = tempfile.gettempdir()
    names = FORKSERVER.call(os.listdir, folder)
    created = [name for name in names if name.startswith("fastloop-")]
    assert [
        name for name in created if not name.startswith(("fastloop-test-", "fastloop-meas"))
    ] == []


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the PSS")
def test_peak_memory_is_measured_by_the_parent():
    little, much = (
        FORKSERVER.call_ranks(RankTask(function=fill, args=(mib,)), observed=True)[0].resources
        for mib in (1, 200)
    )
    assert 150 < much.peak_pss_mib - little.peak_pss_mib < 250


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
@pytest.mark.parametrize("isolation", ["forkserver", "spawn"])
def test_killed_command_ends_all_its_processes(isolation, tmp_path):
    program = write_program(
        tmp_path, f"SingleLauncher(isolation={isolation!r}).call(hang_with_a_worker)"
    )
    count = {"forkserver": 3, "spawn": 2}[isolation]
    with psutil.Popen([sys.executable, program], stderr=subprocess.DEVNULL) as command:
        try:
            while sum(map(is_for_trials, command.children(recursive=True))) < count:
                assert command.poll() is None
                time.sleep(0.1)
            time.sleep(1)
            processes = command.children(recursive=True)
        finally:
            command.kill()
    assert psutil.wait_procs(processes, timeout=60)[1] == []


@pytest.mark.heavy
def test_processes_that_have_left_the_group_are_named_and_ended():
    task = RankTask(function=leave_running, args=(["sleep", "600"], ["true"]))
    (answer,) = FORKSERVER.call_ranks(task)
    pid = answer.value[0]
    assert answer.left_running == (f"sleep 600 (pid {pid})",)
    assert not psutil.pid_exists(pid)
    assert FORKSERVER.call_ranks(RankTask(function=leave_running))[0].left_running == ()


def test_processes_left_by_a_failing_trial_are_ended(tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(JobFailed, match="SIGKILL"):
        FORKSERVER.call(leave_one_and_die, file)
    assert not psutil.pid_exists(int(file.read_text()))


@pytest.fixture
def full_group():
    """A function that moves a process to a cgroup in which it can start no other."""
    with ExitStack() as stack:

        def join(pid: int) -> None:
            try:
                folder = Path(tempfile.mkdtemp(prefix="fastloop-", dir="/sys/fs/cgroup/pids"))
                stack.callback(folder.rmdir)
                (folder / "pids.max").write_text("1")
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                pytest.skip(f"cgroups of processes are not available: {error}")

        yield join


@pytest.mark.heavy
@pytest.mark.nightly
def test_forkserver_that_can_start_no_process_fails_one_call_with_one_line(full_group, capfd):
    FORKSERVER.call(os.getpid)
    full_group(forkserver._forkserver._forkserver_pid)
    with pytest.raises(JobFailed, match="ChildProcessError: the system can't start another"):
        FORKSERVER.call(os.getpid)
    assert FORKSERVER.call(os.getpid) != os.getpid()
    assert capfd.readouterr().err == ""
