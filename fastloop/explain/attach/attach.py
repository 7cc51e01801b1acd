"""Explains a script: runs it with the probe, and says what its loops have waited for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fastloop.core.files import write_text
from fastloop.explain.attach.findings import ScriptFindings, describe_loop, to_json
from fastloop.explain.attach.loops import find_loops
from fastloop.explain.attach.page import render_page
from fastloop.explain.attach.reading import read_records

FINDINGS, PAGE = "attach.json", "attach.html"


def explain_records(
    records: Path, arguments: Sequence[str], status: int, folder: Path
) -> ScriptFindings:
    """The findings about a script that has ended; written to the folder if it had a DataLoader."""
    loops = [loop for loop in find_loops(read_records(records)) if loop.batches]
    findings = ScriptFindings(
        command=shlex.join(arguments),
        status=status,
        loops=tuple(describe_loop(loop) for loop in loops),
    )
    if loops:
        write_text(folder / FINDINGS, to_json(findings))
        write_text(folder / PAGE, render_page(findings))
    return findings
