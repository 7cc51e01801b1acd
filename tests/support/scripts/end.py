"""A script that ends as its argument says."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading


def fail(depth):
    if depth:
        fail(depth - 1)
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


class Custom(BaseException):
    pass


def hook(kind, value, traceback):
    frame = traceback.tb_frame.f_code.co_name
    print("hook:", kind.__name__, value, frame, file=sys.stderr)


def main():
    way = sys.argv[1]
    atexit.register(print, "atexit", flush=True)
    threading.Timer(0.05, print, ["thread"]).start()
    if way == "raise":
        fail(2)
    elif way == "hook":
        sys.excepthook = hook
        fail(0)
    elif way == "custom":
        raise Custom(3)
    elif way == "interrupt":
        raise KeyboardInterrupt
    elif way == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()
    elif way == "_exit":
        os._exit(7)
    elif way == "text":
        sys.exit("a message")
    else:
        sys.exit(int(way))


if __name__ == "__main__":
    main()
