"""Reasons that are told for a loop in which nothing moves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fastloop.explain.attach import hangs
from fastloop.explain.attach.fetch_probe import ProbedSamples
from fastloop.explain.attach.hangs import LOCK, OF_FORK, _find_reasons, _shorten_stacks
from fastloop.explain.attach.live_loops import LiveLoop, _ProcessHistory
from fastloop.explain.attach.live_watch import LiveWatch


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_lock_is_one_of_the_parent_only_in_a_fork(monkeypatch, method):
    """Workers that start otherwise have no copies of locks, and need no other way to start."""
    worker = "worker 0 (pid 2)", SimpleNamespace(pid=2)
    monkeypatch.setattr(hangs, "workers_of", lambda _: [worker])
    monkeypatch.setattr(hangs, "_read_wait", lambda _: LOCK)
    process = _ProcessHistory(loaders=[{"loader": 3, "start_method": method}])
    state = LiveLoop(
        process_id=1,
        number=1,
        place="train.py:9",
        pids=(2,),
        is_waiting=True,
        start_method=process.find_start_method(3),
    )
    reasons = _find_reasons(state, "")
    assert "worker 0 (pid 2) waits for a lock" in reasons
    assert (OF_FORK in reasons) == (method == "fork")
    assert process.find_start_method(4) == ""


DIES = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "pass"])
os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
print(worker.pid, flush=True)
time.sleep(600)
"""
"""A process whose only worker has ended, and that does not ask for its status."""


def waiting_loop(process_id: int, *pids: int) -> LiveLoop:
    return LiveLoop(
        process_id=process_id,
        number=1,
        place="train.py:9",
        pids=pids,
        is_waiting=True,
        start_method="fork",
    )


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system has no waitid")
@pytest.mark.parametrize("is_stream", [False, True])
def test_worker_that_has_ended_is_a_reason_unless_it_reads_a_stream(is_stream):
    command = [sys.executable, "-c", DIES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            worker = int(process.stdout.readline())
            loop = replace(waiting_loop(process.pid, worker), is_stream=is_stream)
            reasons = _find_reasons(loop, "")
        finally:
            process.kill()
    # A worker of a stream ends once it has no more samples.
    assert (f"a worker (pid {worker}) has ended" in reasons) != is_stream


@pytest.mark.skipif(not hangs.SHARED_MEMORY.exists(), reason="this system has no /dev/shm")
@pytest.mark.parametrize(("least_free", "is_full"), [(2.0, True), (-1.0, False)])
def test_full_shared_memory_is_a_reason(monkeypatch, least_free, is_full):
    """To fill the machine's own one would stop other programs: the limit moves instead."""
    monkeypatch.setattr(hangs, "LEAST_FREE", least_free)
    told = "/dev/shm, through which workers send batches, is full"
    assert (told in _find_reasons(waiting_loop(os.getpid()), "")) is is_full


def test_stacks_have_no_frames_of_the_probe():
    own = ProbedSamples.__getitem__.__code__.co_filename
    script = '  File "train.py", line 3 in read\n'
    text = f'{script}  File "{own}", line 9 in __getitem__\n  File "train.py", line 5 in <module>\n'
    shown = _shorten_stacks(text)
    assert shown.startswith(script)
    assert own not in shown


def told_hangs(loop: LiveLoop, folder) -> list[str]:
    """The reports on a loop whose processes record nothing in ten looks of a second each."""
    told: list[str] = []
    watch = LiveWatch(
        folder, lambda: None, None, hang_s=4.0, pause=lambda _: None, tell=told.append
    )
    assert watch.period_s == 1.0
    for _ in range(10):
        watch._check(loop, set())
    return told


def test_hang_of_a_process_is_told_once_and_none_if_the_process_has_ended(tmp_path):
    """A child of the script may leave its loop by `break` and end: no event says so."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        (report,) = told_hangs(waiting_loop(process.pid), tmp_path)
    assert "the loop at train.py:9 has stood still for 4 s" in " ".join(report.split())
    assert told_hangs(waiting_loop(process.pid), tmp_path) == []
