"""Loops of several threads and processes: what one of them does is no part of another one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, cast

import pytest
import torch

from fastloop.explain.attach import patch_dataloader
from fastloop.explain.attach.early_stop import LONGEST_WAIT, EarlyStop, StopCounter
from fastloop.explain.attach.loader_places import is_probe
from fastloop.explain.attach.loop_states import LoaderState, PassState
from fastloop.explain.attach.patch_dataloader import STATE, LoopProbe
from fastloop.explain.attach.recorded_processes import open_script_log
from fastloop.observe import torch_hooks
from fastloop.observe.event_log import EventLog


@dataclass
class Usage:
    """Notes of each step whether its thread has run another loop meanwhile."""

    log: EventLog
    inner_loops: list[bool] = field(default_factory=list)
    is_begun: bool = True

    def end_part(self, _: int, *, has_inner_loop: bool) -> None:
        self.inner_loops.append(has_inner_loop)


class Batches:
    """As an iterator of torch, in the middle of a pass."""

    def __init__(self, number: int, log: EventLog) -> None:
        self._num_yielded = 1
        self.usage = Usage(log)
        state = PassState(
            number=number,
            loader=LoaderState(number, os.getpid()),
            begun_ns=0,
            place="train.py:9",
            earlier_passes=0,
            first_pass=number,
            second_batch_at=2,
            usage=cast("Any", self.usage),
        )
        setattr(self, STATE, state)


@pytest.mark.parametrize("is_thread", [True, False])
def test_step_has_an_inner_loop_if_its_own_thread_runs_another_loop(tmp_path, is_thread):
    log = open_script_log(str(tmp_path))
    ask = LoopProbe(log, object, None).wrap_next(lambda _: "batch")
    first, second = Batches(1, log), Batches(2, log)
    ask(first)
    if is_thread:
        other = Thread(target=ask, args=(second,))
        other.start()
        other.join()
    else:
        ask(second)
    ask(first)
    assert first.usage.inner_loops == [not is_thread]


class Counter:
    """Counts the steps that may end the script."""

    steps = 0

    def count_step(self, *_: object) -> None:
        self.steps += 1


@pytest.mark.parametrize("worker", [None, object()])
def test_steps_in_a_worker_do_not_end_it(tmp_path, monkeypatch, worker):
    monkeypatch.setattr(patch_dataloader, "get_worker_info", lambda: worker)
    counter = Counter()
    log = open_script_log(str(tmp_path))
    ask = LoopProbe(log, object, cast("StopCounter", counter)).wrap_next(lambda _: "batch")
    batches = Batches(1, log)
    ask(batches)
    ask(batches)
    assert counter.steps == (0 if worker else 1)


def count_until_end(counter: StopCounter, loop: tuple[str, str], has_unused: bool) -> int:
    """The number of steps of the loop after which the script ends."""
    for number in range(1, 100):
        try:
            counter.count_step(loop, 1, lambda: has_unused)
        except SystemExit:
            return number
    pytest.fail("the script goes on")


@pytest.mark.parametrize("has_unused", [False, True])
def test_evaluation_ends_a_script_though_a_loader_is_never_used(has_unused):
    with torch.no_grad():
        ended = count_until_end(StopCounter(EarlyStop(batches=4)), ("a", "b"), has_unused)
    assert ended == (4 * LONGEST_WAIT if has_unused else 4)


def test_training_ends_a_script_after_its_own_batches_alone():
    counter = StopCounter(EarlyStop(batches=4))
    with torch.no_grad():
        for _ in range(9):
            counter.count_step(("evaluation", "b"), 1000, lambda: True)
    assert count_until_end(counter, ("training", "a"), has_unused=False) == 4


def test_start_of_a_spawned_worker_is_timed_without_imports_of_fastloop_itself():
    program = "import sys; from fastloop.explain.attach import worker_starts; "
    program += "print(*sys.modules.keys() & {'torch', 'numpy', 'scipy', 'fastloop.explain.model'})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == ""


def test_functions_around_torchs_are_no_place_in_a_script():
    for module in (patch_dataloader, torch_hooks):
        assert is_probe(module.__file__)
    assert not is_probe(__file__)
