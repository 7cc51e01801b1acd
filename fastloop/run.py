"""python -m fastloop.run: compose every combination, build every job, measure, log, compare."""

from __future__ import annotations

import os
import signal
import sys

from fastloop.config import compose_all
from fastloop.endings import end_at_once, end_in_order
from fastloop.files import remove_unused
from fastloop.lifeline import tie
from fastloop.sweep import followed, measure, measure_apart


def main() -> None:
    """The command line; exits with 1 where a job failed, or where the only one is unsupported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of nameless addresses
    end_in_order()
    try:
        _follow_if_led()
        _compose_and_measure()
    finally:
        end_at_once()


def _compose_and_measure() -> None:
    composed = compose_all(measure_apart)
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


def _follow_if_led() -> None:
    """Under torchrun all but the first of its processes do, until its end, what that one says."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        tie(signal.SIGTERM)  # a kill -9 of torchrun leaves its processes running
    if (size := os.environ.get("WORLD_SIZE") or "1") == "1":
        return
    from fastloop.crew import not_told, of_torchrun
    from fastloop.lead import lead

    member = of_torchrun()
    if member is None or member.address is None:
        said = f"WORLD_SIZE={size} without {', '.join(not_told())}: torchrun sets all of them"
        sys.exit(1 if os.environ.get("RANK", "0") != "0" else f"{said}; unset it without torchrun")
    if member.number:
        sys.exit(followed(member))
    try:
        lead(member.address, member.hosts, member.size)  # its end is told, however it comes
    except ConnectionError as why:
        sys.exit(str(why))


if __name__ == "__main__":
    main()
