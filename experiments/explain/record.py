"""Records of judged pipelines: a line of JSON each, written as they come."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """The records of a file, in their order; none where there is no file. The last line of a run
    that was killed may be cut, and is left out."""
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
