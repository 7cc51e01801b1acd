"""The records of a script's processes, read from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastloop.explain.attach.records import FACTS, ROWS, WIDTH, Kind


@dataclass(frozen=True, kw_only=True)
class ProcessRecords:
    """The records of a process."""

    process_id: int
    start_ns: int
    """When it began to record."""
    rows: np.ndarray
    """(rows, WIDTH) integers, see Kind."""
    facts: tuple[dict[str, Any], ...]

    def of_kind(self, kind: Kind) -> np.ndarray:
        """The rows of a kind, in the order in which they were recorded."""
        return self.rows[self.rows[:, 0] == kind]


def read_records(folder: Path) -> list[ProcessRecords]:
    """The records of all processes, in the order of their starts; the end of a file that a killed
    process has not finished is left out."""
    stems = {path.stem for path in folder.iterdir() if path.suffix in (ROWS, FACTS)}
    processes = [_read_process(folder / stem) for stem in stems]
    return sorted(processes, key=lambda each: each.start_ns)


def workers_of(
    records: Sequence[ProcessRecords], pids: Sequence[int], after_ns: int, before_ns: int
) -> Iterator[ProcessRecords]:
    """The records of the processes with these ids that began to record in that time."""
    for process in records:
        if process.process_id in pids and after_ns <= process.start_ns <= before_ns:
            yield process


def _read_process(path: Path) -> ProcessRecords:
    pid, start_ns = path.name.split("-")
    rows, facts = path.with_name(path.name + ROWS), path.with_name(path.name + FACTS)
    data = rows.read_bytes() if rows.exists() else b""
    row_bytes = 8 * WIDTH
    array = np.frombuffer(data[: len(data) // row_bytes * row_bytes], np.int64)
    lines = facts.read_text().splitlines(keepends=True) if facts.exists() else []
    return ProcessRecords(
        process_id=int(pid),
        start_ns=int(start_ns),
        rows=array.reshape(-1, WIDTH),
        facts=tuple(json.loads(line) for line in lines if line.endswith("\n")),
    )
