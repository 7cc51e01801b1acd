"""A process that does nothing is told of while it hangs, once, with what it waits for."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastloop.core.launcher import RankTask
from fastloop.core.types import JobFailed
from fastloop.processes import stall_watch
from fastloop.processes.rank_children import RankWork
from fastloop.processes.run_ranks import run_ranks
from fastloop.processes.stall_watch import Activity, StallWatch, activity_of

CHILD: Any = SimpleNamespace(pid=7)


@pytest.fixture
def watched():
    """A watch with an injected clock, the work that it sees, and what it has told."""
    clock_s, work, told = [0.0], [Activity()], []

    def run(seconds: float, cpu_s: float = 0.0, read_bytes: int = 0) -> None:
        """Let that time pass in steps of a second, with work in each."""
        for _ in range(int(seconds)):
            clock_s[0] += 1
            before = work[0]
            work[0] = Activity(
                cpu_s=before.cpu_s + cpu_s, read_bytes=before.read_bytes + read_bytes
            )
            watch.check()

    watch = StallWatch(
        [CHILD],
        lambda child, still_s, cpu_s: told.append((child, still_s, cpu_s)),
        clock=lambda: int(1e9 * clock_s[0]),
        look=lambda _: work[0],
    )
    return run, told, watch


def test_standstill_is_told_once_and_again_after_work(watched):
    run, told, _ = watched
    run(200)
    assert told == [(CHILD, 30.0, 0.0)]
    run(20, cpu_s=0.5)
    run(200)
    assert len(told) == 2


@pytest.mark.parametrize("work", [{"cpu_s": 0.05}, {"read_bytes": 1 << 20}])
def test_work_is_no_standstill(watched, work):
    run, told, _ = watched
    run(300, **work)
    assert told == []


def test_child_that_has_answered_is_not_watched(watched):
    run, told, watch = watched
    run(20)
    watch.forget(CHILD)
    run(200)
    assert told == []


def test_activity_counts_cpu_time_of_this_process():
    before = activity_of(torch.multiprocessing.current_process().pid or 0)
    stop = time.process_time() + 0.05
    while time.process_time() < stop:
        pass
    assert activity_of(torch.multiprocessing.current_process().pid or 0).cpu_s > before.cpu_s


class Hanging(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(2.5 if index == 0 else 0)
        return index


def load_hanging() -> int:
    loader = torch.utils.data.DataLoader(Hanging(), num_workers=1, multiprocessing_context="fork")
    return sum(1 for _ in loader)


@pytest.mark.heavy
def test_hanging_loader_is_told_with_its_worker_and_goes_on(monkeypatch, capfd):
    monkeypatch.setattr(stall_watch, "STALL_S", 0.6)
    task = RankTask(function=load_hanging, title="trial 2 of raw digits")
    work = RankWork(
        task=task, isolation="forkserver", backend=None, ranks=1, timeout_s=600, observed=False
    )
    (answer,) = run_ranks(work)
    assert answer.value == 4
    lines = [line for line in capfd.readouterr().err.splitlines() if "CPU time" in line]
    assert len(lines) == 1
    assert lines[0].startswith("trial 2 of raw digits: for ")
    assert "waits in next() of a DataLoader" in lines[0]
    assert "is in __getitem__ (test_stall_watch.py" in lines[0]
    assert "trial_timeout_s" in lines[0]


@pytest.mark.heavy
def test_time_limit_still_ends_what_hangs(monkeypatch, capfd):
    monkeypatch.setattr(stall_watch, "STALL_S", 0.3)
    work = RankWork(
        task=RankTask(function=time.sleep, args=(60,)),
        isolation="forkserver",
        backend=None,
        ranks=1,
        timeout_s=2,
        observed=False,
    )
    with pytest.raises(JobFailed, match="no result after 2 s"):
        run_ranks(work)
    assert "this step: for " in capfd.readouterr().err
