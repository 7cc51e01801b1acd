"""Further runs of a script that was observed, each in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


def run_again(
    command: Sequence[str],
    folder: Path,
    output: Path,
    wait: Callable[[subprocess.Popen[bytes]], object],
) -> int:
    """Run the command in the folder, and return its status; negative: the signal that ended it.

    output: the file for the text that it prints. wait: waits for the process; when it returns or
    raises, all processes of the run are killed.
    """
    with output.open("wb") as file:
        # A group of its own, so that no process of the script outlives the run.
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    return status


def read_last_line(output: Path) -> str:
    """The last line that a run has printed, which usually tells why it has failed."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    # torchrun ends its report with a rule.
    said = (line.strip() for line in reversed(lines))
    return next((line for line in said if any(map(str.isalnum, line))), "it printed nothing")
