"""Fresh processes: started quickly, ended always, their failures told."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from fastloop.launchers.single import Single
from fastloop.orders.sequential import Sequential
from fastloop.torch_loader import torch_epochs
from fastloop.types import Invalid, JobFailed, Plan, Unsupported

FORKSERVER = Single(isolation="forkserver")
EVERY_WAY = [Single(isolation=how) for how in ("forkserver", "spawn", "inline")]


def identity(*args):
    return os.getpid(), args


def where_modules_were_imported():
    from fastloop import forkserver

    return os.getpid(), forkserver.IMPORTED_BY, forkserver.PRELOADED


def fail(error):
    raise error


def die(sign):
    os.kill(os.getpid(), sign)


def leave(status):
    sys.exit(status)


def hang():
    time.sleep(600)


class Stuck:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        time.sleep(600)


class Broken:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise ValueError("sample 0 is broken")


class Huge:
    """Its one sample is larger than any memory."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.make(1 << 56)


def hang_with_a_worker():
    read_one(Stuck())


def read_one(samples, num_workers=1):
    plan = Plan(
        order=Sequential(),
        seed=0,
        batch_size=1,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    with torch_epochs(samples, plan) as epochs:
        return next(iter(epochs(0)))


def die_beside_a_child():
    multiprocessing.get_context("fork").Process(target=hang).start()
    os.kill(os.getpid(), signal.SIGKILL)


def is_daemon():
    return multiprocessing.current_process().daemon


def fill(mib):
    held = torch.ones(mib << 18)
    time.sleep(0.5)
    return float(held[0])


@pytest.mark.parametrize("launcher", EVERY_WAY, ids=lambda one: one.isolation)
def test_work_is_done_and_comes_back(launcher):
    pid, args = launcher.call(identity, 1, "two")
    assert args == (1, "two")
    assert (pid == os.getpid()) == (launcher.isolation == "inline")


def test_each_call_has_a_process_of_its_own_that_may_have_children():
    assert FORKSERVER.call(identity)[0] != FORKSERVER.call(identity)[0]
    assert FORKSERVER.call(is_daemon) is False


def test_the_forkserver_has_imported_torch_tensordict_and_fastloop_before(tmp_path):
    program = "import tensordict; "
    program += "print(*FORKSERVER.call(where_modules_were_imported), sep='\\n')"
    command = [sys.executable, written(tmp_path, program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pid, imported_by, preloaded = done.stdout.splitlines()
    assert imported_by != pid
    assert {"torch", "tensordict", "fastloop.job"} <= set(re.findall(r"'([^']+)'", preloaded))


def written(folder: Path, statement: str) -> str:
    """Path of a program that does this with what is defined here, in a process of its own."""
    program = folder / "program.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from test_launcher import *\n"
        "import fastloop.job\n"
        "if __name__ == '__main__':\n"
        f"    {statement}\n"
    )
    return str(program)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unsupported("no such device"), "unsupported: no such device"),
        (Invalid("a sample is missing"), "invalid: a sample is missing"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory: CUDA out of memory"),
        (MemoryError(), "out of memory: MemoryError"),
        (OSError(12, "Cannot allocate memory"), "out of memory: [Errno 12] Cannot allocate memory"),
        (ValueError("first line\nsecond"), "ValueError: first line"),
    ],
)
@pytest.mark.parametrize("launcher", EVERY_WAY, ids=lambda one: one.isolation)
def test_a_failure_has_its_reason_and_its_traceback(launcher, error, reason):
    with pytest.raises(JobFailed) as caught:
        launcher.call(fail, error)
    assert caught.value.reason == reason
    assert "in fail" in caught.value.details


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        (die, signal.SIGKILL, "killed by SIGKILL"),
        (die, signal.SIGTERM, "killed by SIGTERM"),
        (leave, 7, "exit status 7"),
    ],
)
def test_a_process_that_ends_without_a_result_is_told(function, argument, reason):
    with pytest.raises(JobFailed, match=reason):
        FORKSERVER.call(function, argument)


def test_a_hang_ends_after_the_timeout():
    with pytest.raises(JobFailed, match=r"^timeout: no result after 0.5 s: in hang "):
        FORKSERVER.call(hang, timeout_s=0.5)
    with pytest.raises(JobFailed, match=r"^timeout"):
        FORKSERVER.call_ranks(hang, timeout_s=0.5, observed=True)


def alive_below_us() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True) if one.is_running()}


@pytest.mark.parametrize("work", [hang_with_a_worker, die_beside_a_child])
def test_no_child_of_a_trial_outlives_it(work):
    FORKSERVER.call(identity)
    before = alive_below_us()
    with pytest.raises(JobFailed):
        FORKSERVER.call(work, timeout_s=2)
    gone = [psutil.Process(pid) for pid in alive_below_us() - before]
    assert psutil.wait_procs(gone, timeout=5)[1] == []


def test_a_workers_error_is_told_by_its_last_line():
    with pytest.raises(
        JobFailed,
        match=r"^BadData: sample 0: ValueError: sample 0 is broken \(in a DataLoader worker\)$",
    ):
        FORKSERVER.call(read_one, Broken())


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("make", [torch.empty, np.empty], ids=["torch", "numpy"])
def test_memory_that_is_not_there_is_told(make, num_workers):
    told = "sample 0: .*a DataLoader worker" if num_workers else "llocate"
    with pytest.raises(JobFailed, match=f"^out of memory: .*{told}"):
        FORKSERVER.call(read_one, Huge(make), num_workers)


def test_what_a_process_is_to_note_has_no_name_that_a_kill_would_leave_behind():
    folder = tempfile.gettempdir()
    names = FORKSERVER.call(os.listdir, folder)
    ours = [name for name in names if name.startswith("fastloop-")]
    assert [name for name in ours if not name.startswith(("fastloop-test-", "fastloop-meas"))] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the PSS")
def test_the_peak_memory_is_seen_from_outside():
    [(_, little)] = FORKSERVER.call_ranks(fill, 1, observed=True)
    [(_, much)] = FORKSERVER.call_ranks(fill, 200, observed=True)
    assert 150 < much.peak_pss_mib - little.peak_pss_mib < 250


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has PR_SET_PDEATHSIG")
@pytest.mark.parametrize("isolation", ["forkserver", "spawn"])
def test_a_killed_command_takes_its_processes_with_it(isolation, tmp_path):
    program = written(tmp_path, f"Single(isolation={isolation!r}).call(hang_with_a_worker)")
    command = psutil.Popen([sys.executable, program], stderr=subprocess.DEVNULL)

    def hanging():
        found = [
            one
            for one in command.children(recursive=True)
            if "resource_tracker import" not in str(one.cmdline())
        ]
        return found if len(found) >= {"forkserver": 3, "spawn": 2}[isolation] else []

    while not hanging():
        assert command.poll() is None
        time.sleep(0.1)
    time.sleep(1)
    processes = command.children(recursive=True)
    command.kill()
    command.wait()
    assert psutil.wait_procs(processes, timeout=30)[1] == []
