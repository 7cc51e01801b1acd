"""Ends an observed script before its own end, when one of its loops has had enough batches."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from fastloop.core.spans import now_ns

ASKED = "stop.json"
"""File in the folder with the early end that is asked for."""


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """The reasons to end an observed script early; a reason that is None does not count."""

    batches: int | None = None
    """End it once one of its loops has worked on so many batches."""
    seconds: float | None = None
    """End it at the first step that ends so many seconds after its import of torch's DataLoader."""


def ask_for_stop(folder: Path, stop: EarlyStop) -> None:
    """Let processes that record to the folder end early."""
    (folder / ASKED).write_text(json.dumps(asdict(stop)))


def read_stop(folder: Path) -> EarlyStop | None:
    """The early end that the folder asks for; None: the script ends by itself."""
    try:
        return EarlyStop(**json.loads((folder / ASKED).read_text()))
    except FileNotFoundError:
        return None


class StopCounter:
    """Counts the steps of each loop, and ends the script as `sys.exit(0)` does."""

    def __init__(self, stop: EarlyStop) -> None:
        self.stop, self.start_ns = stop, now_ns()
        self.steps: Counter[str] = Counter()

    def count_step(self, place: str) -> None:
        """Count a step of the loop at the place; does not return after the last one."""
        self.steps[place] += 1
        stop, spent_s = self.stop, (now_ns() - self.start_ns) / 1e9
        has_batches = stop.batches is not None and self.steps[place] >= stop.batches
        if has_batches or (stop.seconds is not None and spent_s >= stop.seconds):
            end_script()


def end_script() -> NoReturn:
    """End the script with status 0, as `sys.exit(0)` does in the main thread."""
    if threading.current_thread() is threading.main_thread():
        sys.exit(0)
    # In another thread SystemExit ends that thread alone, and the main one would wait for its
    # batches for ever. Nothing else ends the process from here; its buffers are written before.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
