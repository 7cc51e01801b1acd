"""A script that waits for a signal, and says which one it got if it handles it."""

from __future__ import annotations

import signal
import sys
import threading


def handle(number, _):
    print("handled", signal.Signals(number).name, flush=True)
    sys.exit(5)


never = threading.Event()
if sys.argv[1] == "handle":
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGUSR1, handle)
try:
    print("ready", flush=True)
    # Python runs no handler of a signal that has come just before a wait without an end.
    while not never.wait(0.1):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
