"""Commands that get Ctrl-C once their script has begun."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


def interrupt_after(command: Sequence[str], first: str, cwd: Path) -> tuple[int, str, str]:
    """Run the command in the folder, and send it SIGINT after its first line, which has to be
    `first`; its return code, the output after that line, and its errors."""
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=cwd, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == first
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    return process.returncode, output, errors
