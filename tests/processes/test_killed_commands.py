"""`kill -9` of a command at each stage: every process that it has started ends too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fork_server
import psutil
import pytest
from child_processes import is_for_trials
from commands import QUICK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel ends children"),
]
DATASET = """\
import os
import pathlib
import time

import torch
from torch.utils.data import get_worker_info


class Endless:
    def __len__(self):
        return {count}

    def __getitem__(self, index):
        if get_worker_info():
            (pathlib.Path({folder!r}) / str(os.getpid())).touch()
            time.sleep(1000)
        time.sleep({seconds})
        return torch.zeros(3), index % 10
"""
"""Samples that take so long, and in a worker, which leaves a file with its number, for ever."""
BENCH = """\
import fastloop
import mine
from torch.utils.data import DataLoader

if __name__ == "__main__":
    {call}
"""
JOB = ("dataset._target_=mine.Endless", "loader=raw", *QUICK[:5])
WORKER = (*JOB, "num_workers=1")
STAGES = {
    "hashing": ("fastloop", ("run", *JOB)),
    "worker": ("fastloop", ("run", *WORKER)),
    "worker of a forkserver": ("fastloop", ("run", *WORKER, "multiprocessing_context=forkserver")),
    "worker of a spawned trial": ("fastloop", ("run", *WORKER, "launcher.isolation=spawn")),
    "explain": ("fastloop", ("explain", *WORKER)),
    "tune": ("fastloop", ("tune", *WORKER)),
    "write_store": ("write_store.py", ()),
}
HEAVY = set(STAGES) - {"worker"}
NIGHTLY = ("worker of a spawned trial",)


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(
            each,
            marks=[pytest.mark.heavy] * (each in HEAVY) + [pytest.mark.nightly] * (each in NIGHTLY),
        )
        for each in STAGES
    ],
)
def test_killed_command_leaves_no_process(tmp_path, stage):
    write_programs(tmp_path, is_slow=stage == "hashing")
    module, arguments = STAGES[stage]
    module = str(tmp_path / module) if module.endswith(".py") else module
    command = fork_server.start(module, arguments, tmp_path, dict(os.environ))
    workers = tmp_path / "workers"
    command.wait_until(lambda: any(workers.iterdir()))
    assert_all_end(command)


@pytest.mark.heavy
def test_command_that_is_killed_as_its_first_process_starts_leaves_none(tmp_path):
    write_programs(tmp_path, is_slow=True)  # or the command might end before it is looked at
    command = fork_server.start("fastloop", ("run", *WORKER), tmp_path, dict(os.environ))
    seen: set[int] = set()

    def has_lasting_child() -> bool:
        # Another program is a copy of this process for a moment before it begins.
        pids = {each.pid for each in command.process.children() if is_for_trials(each)}
        lasting = bool(pids & seen)
        seen.update(pids)
        return lasting

    command.wait_until(has_lasting_child)
    assert_all_end(command)


def write_programs(folder: Path, is_slow: bool) -> None:
    """mine.py and write_store.py; workers leave their files in a folder."""
    (folder / "workers").mkdir()
    count, seconds = (4000, 0.02) if is_slow else (8, 0)
    program = DATASET.format(count=count, seconds=seconds, folder=str(folder / "workers"))
    (folder / "mine.py").write_text(program)
    call = "fastloop.write_store(mine.Endless(), 'store', num_workers=2)"
    (folder / "write_store.py").write_text(BENCH.format(call=call))


def assert_all_end(command: fork_server.Command) -> None:
    """Kill the command and wait until all of its processes have ended."""
    processes = command.process.children(recursive=True)
    command.process.kill()
    try:
        assert processes
        assert psutil.wait_procs(processes, timeout=60)[1] == []
    finally:
        for process in processes:
            if process.is_running():
                process.kill()
    command.wait()
