"""Signals that arrive while a process is started."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

import pytest

from fastloop.processes.lifecycle import MESSAGES, defer_signals


@contextmanager
def handler_of(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", MESSAGES)
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
