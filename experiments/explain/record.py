"""Records of judged pipelines: one line of JSON for each, written as soon as it is known."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """The records of a file, in their order; empty if there is no file. If a run was killed, its
    last line may be cut off, and is left out."""
    return list(_whole_lines(path)) if path.exists() else []


def add_record(path: Path, record: Record) -> None:
    """Append a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = [json.dumps(each) for each in [*read_records(path), record]]
    partial = path.with_suffix(".part")
    partial.write_text("\n".join([*whole, ""]))
    partial.replace(path)


def _whole_lines(path: Path) -> Iterator[Record]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return
