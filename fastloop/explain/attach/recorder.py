"""Writes a process's records to files, at most one write in a quarter of a second."""

from __future__ import annotations

import json
import os
from array import array
from typing import Any

from fastloop.core.spans import now_ns
from fastloop.explain.attach.records import FACTS, ROWS, WIDTH

FLUSH_NS = 250_000_000
MOST_BUFFERED = 4096
MOST_ROWS = 400_000
"""32 MB; later batches are recorded as totals."""


class Recorder:
    """The records of this process, and after a fork those of the new one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.broken = False
        self.begin()

    def begin(self) -> None:
        """Start anew, with files of this process; called again in a forked child."""
        self._rows = array("q")
        self._name = f"{os.getpid()}-{now_ns()}"
        self._flushed_ns = now_ns()
        self.count = 0

    @property
    def full(self) -> bool:
        """True once there are as many rows as may be."""
        return self.count >= MOST_ROWS

    def add(self, row: tuple[int, ...], at_ns: int) -> None:
        """Record a row of WIDTH numbers; at_ns is the time of its last event."""
        rows = self._rows
        rows.extend(row)
        self.count += 1
        if at_ns - self._flushed_ns > FLUSH_NS or len(rows) >= MOST_BUFFERED * WIDTH:
            self.flush()

    def add_fact(self, **fact: Any) -> None:
        """Record a fact at once."""
        self._append(FACTS, json.dumps(fact).encode() + b"\n")

    def flush(self) -> None:
        """Write all rows that were recorded."""
        rows, self._rows = self._rows, array("q")
        self._flushed_ns = now_ns()
        if rows:
            self._append(ROWS, rows.tobytes())

    def _append(self, suffix: str, data: bytes) -> None:
        if self.broken:
            return
        try:
            path = os.path.join(self.folder, self._name + suffix)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, data)
            finally:
                os.close(file)
        except OSError:  # a full disk must not end the script
            self.broken = True
