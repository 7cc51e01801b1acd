"""python -m fastloop.run: compose every combination, build every job, measure, log, compare."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from fastloop.config import compose_all, remove_unused
from fastloop.lifeline import tie
from fastloop.sweep import followed, measure

if TYPE_CHECKING:
    from types import FrameType

ENDINGS = {
    getattr(signal, name): said
    for name, said in [("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up")]
    if hasattr(signal, name)
}


def main() -> None:
    """The command line; exits with 1 where a job failed, or where the only one is unsupported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of nameless addresses
    for number in ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup has said that it may hang up
            signal.signal(number, _end)
    _follow_if_led()
    composed = compose_all(measure)
    if not composed:
        return
    try:
        sys.exit(measure(composed))
    except OSError as error:  # a disk that is full, or gone
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        sys.exit(f"{error}; finished trials are kept")
    finally:
        remove_unused(composed[0].sweep_folder)


def _end(number: int, _: FrameType | None) -> None:
    """Leave once, in order: a second Ctrl-C must not cut short how the first one is recorded."""
    for one in ENDINGS:
        signal.signal(one, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{ENDINGS[signal.Signals(number)]}: finished trials are kept", file=sys.stderr)
    sys.exit(128 + number)


def _follow_if_led() -> None:
    """Under torchrun all but the first of its processes do, until its end, what that one says."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        tie(signal.SIGTERM)  # a kill -9 of torchrun leaves its processes running
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return
    from fastloop.crew import of_torchrun
    from fastloop.lead import lead

    member = of_torchrun()
    if member is None or member.address is None:
        return
    if member.number:
        sys.exit(followed(member))
    lead(member.address, member.hosts, member.size)  # its end is told, however it comes


if __name__ == "__main__":
    main()
