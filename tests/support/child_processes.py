"""Child processes, looked at while some of them begin or end."""

from __future__ import annotations

import psutil


def command_line(process: psutil.Process) -> str:
    """The words that the process was started with; empty if it has ended, or ends right now."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_for_trials(process: psutil.Process) -> bool:
    """True for a child that is to run trials: neither multiprocessing's tracker of resources, nor
    another program, such as git, which ends soon."""
    words = command_line(process)
    return "python" in words and "resource_tracker import" not in words
