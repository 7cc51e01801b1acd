"""The lines of a few steps of a loop are timed, and the script runs as without the trace."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fastloop.core.spans import pause
from fastloop.explain.attach import line_trace
from fastloop.explain.attach.line_trace import MOST_LINES, begin_trace

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="needs Python's trace function")
LONG_NS = 3_000_000


def rest():
    pause(LONG_NS / 1e9)


def spin():
    for _ in range(MOST_LINES):
        pass


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    turns = line_trace.Counter()
    monkeypatch.setattr(line_trace, "STEP_COUNTS", turns)
    return turns


def trace_steps(work, count=6):
    """The facts of the traced steps of a loop, by their numbers."""
    facts = {}
    for number in range(1, count + 1):
        trace = begin_trace("train.py:9")
        with suppress(ValueError):
            work()
        if trace and (fact := trace.end()):
            facts[number] = fact
    return facts


def longest(lines):
    return max(lines, key=lambda line: line[2])


def line_of(function, text):
    lines = Path(function.__code__.co_filename).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[first:], first + 1) if line.strip() == text)


def test_longest_lines_of_the_loop_and_of_its_call_are_found():
    facts = trace_steps(rest, count=17)
    assert [*facts] == [2, 3, 4, 5, 8, 16]
    for fact in facts.values():
        path, line, spent_ns = longest(fact["of_loop"])
        assert (path, line) == (__file__, line_of(trace_steps, "work()"))
        assert LONG_NS <= spent_ns <= fact["whole_ns"]
        assert longest(fact["of_called"])[:2] == (__file__, line_of(rest, "pause(LONG_NS / 1e9)"))
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None


def test_step_of_very_many_lines_is_only_timed_in_its_loop():
    for fact in trace_steps(spin).values():
        assert fact["of_called"] is None
        assert longest(fact["of_loop"])[1] == line_of(trace_steps, "work()")


def count_down(number):
    return number and count_down(number - 1)


def test_step_of_very_many_calls_is_hardly_slower_and_tells_no_lines():
    tracing = []

    def call_often():
        for _ in range(60):
            count_down(200)
        tracing.append(sys.gettrace() is not None)

    assert trace_steps(call_often) == {}
    assert tracing == [False] * 6


def test_debugger_that_is_begun_in_a_step_keeps_its_frames():
    frame = sys._getframe()

    def own(*_):
        return own

    for _ in range(2):
        trace = begin_trace("train.py:9")
    try:
        sys.settrace(own)
        frame.f_trace = own
        assert trace.end() is not None
        assert (sys.gettrace(), frame.f_trace) == (own, own)
    finally:
        sys.settrace(None)
        frame.f_trace = None


def test_error_of_a_step_stays_what_it_is():
    def fail():
        raise ValueError("no")

    assert [*trace_steps(fail)] == [2, 3, 4, 5]
    assert sys.gettrace() is None


def test_trace_function_of_the_script_is_left_alone():
    def own(*_):
        return None

    def set_own():
        sys.settrace(own)

    try:
        # The script sets it in its first step, or in one that is traced.
        for work in (set_own, spin):
            trace_steps(work)
            assert sys.gettrace() is own
    finally:
        sys.settrace(None)


def test_process_that_is_forked_in_a_step_is_not_traced():
    statuses = []

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(sys.gettrace() is not None)
        statuses.append(os.waitpid(child, 0)[1])

    trace_steps(fork, count=3)
    assert statuses == [0, 0, 0]


def ask():
    return begin_trace("train.py:9")


def test_step_may_be_in_the_caller_of_the_function_that_asks_for_batches():
    facts = []
    for _ in range(6):
        trace = ask()
        pause(LONG_NS / 1e9)
        if trace:
            facts.append(trace.end())
    assert len(facts) == 4
    me = test_step_may_be_in_the_caller_of_the_function_that_asks_for_batches
    assert {longest(fact["of_loop"])[1] for fact in facts} == {line_of(me, "pause(LONG_NS / 1e9)")}


def begin_and_leave(levels):
    if levels:
        return begin_and_leave(levels - 1)
    for _ in range(2):
        trace = begin_trace("train.py:9")
    assert sys.gettrace() is not None
    return trace


def test_trace_ends_with_the_functions_that_leave_its_loop():
    assert begin_and_leave(2)
    assert sys.gettrace() is None


def test_trace_of_a_loop_that_was_left_ends_after_a_time(monkeypatch):
    for _ in range(2):
        begin_trace("train.py:9")
    assert sys.gettrace() is not None
    monkeypatch.setattr(line_trace, "MOST_NS", 0)
    spin()
    assert sys.gettrace() is None


def test_loop_of_another_place_ends_the_trace():
    for _ in range(2):
        begin_trace("train.py:9")
    assert begin_trace("train.py:20") is None
    assert sys.gettrace() is None


def test_steps_of_compiled_code_are_not_traced(monkeypatch):
    """torch.compile compiles code once more if a trace function is set."""
    from torch._dynamo import utils

    monkeypatch.setitem(utils.counters, "frames", line_trace.Counter(total=1, ok=1))
    assert trace_steps(rest) == {}
    # Another thread is importing the module.
    monkeypatch.delattr(utils, "counters")
    assert trace_steps(rest)


def test_code_that_a_traced_step_would_compile_is_compiled_once():
    import torch
    from torch._dynamo import utils

    compiled = []

    def note(module, _):
        compiled.append(module)
        return module.forward

    torch._dynamo.reset()
    utils.counters.clear()
    double = torch.compile(lambda number: 2 * number, backend=note)
    # The first step is not traced.
    begin_trace("train.py:9")
    facts = trace_steps(lambda: double(torch.ones(3)))
    assert len(compiled) == 1
    assert facts == {}
    assert sys.gettrace() is None
