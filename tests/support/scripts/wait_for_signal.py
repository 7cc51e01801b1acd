"""A script that waits for a signal, and says which one it got if it handles it."""

from __future__ import annotations

import signal
import sys
import threading


def handle(number, _):
    print("handled", signal.Signals(number).name, flush=True)
    sys.exit(5)


if sys.argv[1] == "handle":
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGUSR1, handle)
try:
    print("ready", flush=True)
    threading.Event().wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
