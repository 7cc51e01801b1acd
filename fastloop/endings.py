"""Signals that end a command: in order, once, and with a word of what is kept."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDINGS = {
    getattr(signal, name): said
    for name, said in [("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up")]
    if hasattr(signal, name)
}


def end_in_order() -> None:
    """From now on, leave by SystemExit when one of them comes, but for what is ignored already."""
    for number in ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup has said that it may hang up
            signal.signal(number, _end)


def end_at_once() -> None:
    """From now on they end the process without a word: all is kept, and what Python does last would
    print the traceback of a SystemExit that came in it."""
    for number in ENDINGS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def leave_in_order() -> None:
    """The same without a word, and whatever is ignored: for a process that keeps nothing."""
    for number in ENDINGS:
        signal.signal(number, _leave)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """The same inside of this, in a process that is somebody else's otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDINGS}
    end_in_order()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_by_signal(end: SystemExit) -> bool:
    """True for what a signal has raised here, and not a module that exits where it is imported."""
    return end.code in {128 + number for number in ENDINGS}


def _end(number: int, _: FrameType | None) -> None:
    _hear_no_more()
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{ENDINGS[signal.Signals(number)]}: finished trials are kept", file=sys.stderr)
    sys.exit(128 + number)


def _leave(number: int, _: FrameType | None) -> None:
    _hear_no_more()
    sys.exit(128 + number)


def _hear_no_more() -> None:
    """Leave once: a second Ctrl-C must not cut short how the first one is recorded."""
    for one in ENDINGS:
        signal.signal(one, signal.SIG_IGN)
