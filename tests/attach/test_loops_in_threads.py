"""Loops of several threads: what one of them does is no part of another one's steps."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, cast

import pytest

from fastloop.explain.attach.loop_probe import STATE, IterationState, LoaderState, LoopProbe
from fastloop.explain.attach.recorded_processes import open_script_log


@dataclass
class Usage:
    """Notes of each step whether its thread had no other loop meanwhile."""

    alone: list[bool] = field(default_factory=list)
    is_begun: bool = True

    def end_part(self, _: int, *, is_alone: bool) -> None:
        self.alone.append(is_alone)


class Batches:
    """As an iterator of torch, in the middle of a pass."""

    def __init__(self, number: int) -> None:
        self._num_yielded = 1
        self.usage = Usage()
        state = IterationState(
            number=number,
            loader=LoaderState(number, os.getpid()),
            begun_ns=0,
            place="train.py:9",
            passed=0,
            since=number,
            second=2,
            usage=cast("Any", self.usage),
        )
        setattr(self, STATE, state)


@pytest.mark.parametrize("is_thread", [True, False])
def test_step_is_alone_unless_its_own_thread_has_another_loop(tmp_path, is_thread):
    probe = LoopProbe(open_script_log(str(tmp_path)), object, None)
    ask = probe.wrap_next(lambda _: "batch")
    first, second = Batches(1), Batches(2)
    ask(first)
    if is_thread:
        other = Thread(target=ask, args=(second,))
        other.start()
        other.join()
    else:
        ask(second)
    ask(first)
    assert first.usage.alone == [is_thread]
