"""Signals that arrive while a process is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from fastloop.core.types import SignalExit
from fastloop.processes.command_endings import ENDINGS
from fastloop.processes.signals import ExitOnSignal, defer_signals, exit_if_signalled

RUN = ("fastloop.run", "tracker=none", "trials=1", "epochs=1")
SIGNAL_ON_IMPORT = """
import os, runpy, signal, sys
number, name, module = int(sys.argv[1]), sys.argv[2], sys.argv[3]
signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
def send(event, arguments):
    if event == "import" and arguments[0] == name:
        os.kill(os.getpid(), number)
sys.addaudithook(send)
sys.argv[:4] = [module]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module like `python -m` and sends it a signal when another module is about to be
imported."""


@contextmanager
def handler_of(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", ENDINGS)
def test_signal_is_handled_at_the_end_of_the_context_and_no_earlier(number):
    events = []

    def record(number, _):
        events.append(number)
        raise SystemExit(number)

    def start():
        with defer_signals():
            signal.raise_signal(number)
            signal.raise_signal(number)
            events.append("started")

    with handler_of(number, record):
        with pytest.raises(SystemExit):
            start()
        assert signal.getsignal(number) is record
    assert events == ["started", number]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_default_and_ignored_signals_stay_so(handler):
    with handler_of(signal.SIGHUP, handler), defer_signals():
        assert signal.getsignal(signal.SIGHUP) is handler


def test_other_threads_leave_the_handlers_alone():
    handlers = []

    def run():
        with defer_signals():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("number", "name", "arguments"),
    [
        (signal.SIGINT, "hydra", RUN),
        # swallows an exception of a signal handler
        (signal.SIGTERM, "numpy._core._multiarray_umath", RUN),
        (signal.SIGINT, "hydra", ("fastloop", "prepare")),
        (signal.SIGINT, "fastloop.cli.arguments", ("fastloop", "report")),
        (signal.SIGINT, "fastloop.cli.arguments", ("fastloop", "compare")),
        (signal.SIGTERM, "fastloop.core.result", ("fastloop", "log", "a")),
    ],
    ids=["run", "run-numpy", "prepare", "report", "compare", "log"],
)
def test_signal_during_the_imports_ends_a_command_with_one_line(tmp_path, number, name, arguments):
    command = [sys.executable, "-c", SIGNAL_ON_IMPORT, str(int(number)), name, *arguments]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    forecast, _, said = process.stderr.rpartition("better known after the first round\n")
    assert said == f"{ENDINGS[number]}\n"
    assert forecast.count("\n") == 0
    assert process.returncode == 128 + number
    assert os.listdir(tmp_path) == []


@pytest.fixture
def no_signal_yet(monkeypatch):
    """A record of signals of its own, which later tests do not see."""
    monkeypatch.setattr("fastloop.processes.signals._arrived", [])


@pytest.mark.usefixtures("no_signal_yet")
def test_signal_while_another_ends_the_process_has_no_effect():
    events = []

    def work():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            events.append("saved")

    with handler_of(signal.SIGTERM, ExitOnSignal(None)), pytest.raises(SignalExit):
        work()
    assert events == ["saved"]


@pytest.mark.usefixtures("no_signal_yet")
def test_swallowed_signal_ends_the_process_at_the_next_check_or_signal():
    exit_if_signalled()
    with handler_of(signal.SIGTERM, ExitOnSignal(None)):
        for _ in range(2):
            with pytest.raises(SignalExit, match="143"):
                signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SignalExit, match="143"):
        exit_if_signalled()
