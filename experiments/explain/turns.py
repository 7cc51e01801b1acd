"""A script run plain and under attach, side by side: one trains an epoch while the other waits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.explain.record import Record
from fastloop.core.spans import now_ns, seconds_between
from fastloop.explain.attach.follow_children import BOOTSTRAP

SCRIPT = str(Path(__file__).with_name("attached_script.py"))
EPOCHS = 6
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@dataclass
class TimedScript:
    """A script that runs, and the times of its parts."""

    process: subprocess.Popen[str]
    seconds: float
    """Seconds since its start, without the time in which it waited for its turn."""
    start_cpu_s: float
    epochs_s: list[float] = field(default_factory=list)
    epochs_cpu_s: list[float] = field(default_factory=list)

    def train_epoch(self) -> None:
        """Let the script train an epoch."""
        seconds, cpu_s = _answer(self.process, "\n")
        self.epochs_s.append(seconds)
        self.epochs_cpu_s.append(cpu_s)
        self.seconds += seconds

    def end(self) -> Record:
        """Let the script end. Returns its figures, with the CPU time of all its processes."""
        start_ns = now_ns()
        assert self.process.stdin is not None
        self.process.stdin.close()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return {
            "seconds": self.seconds + seconds_between(start_ns, now_ns()),
            "cpu": usage.ru_utime + usage.ru_stime,
            "start_cpu": self.start_cpu_s,
            "epochs": self.epochs_s,
            "epochs_cpu": self.epochs_cpu_s,
        }


def time_pair(arguments: Sequence[str], number: int) -> Record:
    """Figures of the script, plain and attached. `number` decides which of them comes first."""
    with tempfile.TemporaryDirectory() as folder:
        plain = [sys.executable, SCRIPT, *arguments]
        attached = [sys.executable, BOOTSTRAP, folder, SCRIPT, *arguments]
        commands = {"plain": plain, "attached": attached}
        order = list(commands)[:: -1 if number % 2 else 1]
        scripts = {way: start_script(commands[way]) for way in order}
        for turn in range(EPOCHS):
            for way in order[:: -1 if turn % 2 else 1]:
                scripts[way].train_epoch()
        return {way: scripts[way].end() for way in order}


def time_command(arguments: Sequence[str]) -> float:
    """Seconds of the whole command with the same number of epochs."""
    command = [sys.executable, "-m", "fastloop", "attach", SCRIPT, *arguments]
    with tempfile.TemporaryDirectory() as folder:
        start_ns = now_ns()
        subprocess.run(
            command, cwd=folder, input="\n" * EPOCHS, capture_output=True, text=True, check=True
        )
        return seconds_between(start_ns, now_ns())


def start_script(command: Sequence[str]) -> TimedScript:
    """Start the script, which then waits for its first turn."""
    start_ns = now_ns()
    process = subprocess.Popen(command, **PIPES)
    (cpu_s,) = _answer(process, "")
    seconds = seconds_between(start_ns, now_ns())
    return TimedScript(process=process, seconds=seconds, start_cpu_s=cpu_s)


def _answer(process: subprocess.Popen[str], message: str) -> list[float]:
    """The numbers that the script prints in answer to the message."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(message)
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{SCRIPT} has ended with status {process.wait()}")
    return [float(number) for number in line.split()]
