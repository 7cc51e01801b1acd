"""Find the share of time that a running process spends in next() of a DataLoader.

py-spy samples the stack of its main thread from outside.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil

from fastloop.core.number_text import show_percent
from fastloop.core.types import Unsupported

SAMPLES_PER_S = 50
"""Number of samples that py-spy takes a second, without pausing the process."""
FRAME = re.compile(r".* \((?P<path>.*):(?P<line>\d+)\)")
"""A frame in the output of py-spy."""
IN_NEXT = re.compile(r"__next__ \(.*torch/utils/data/dataloader\.py:\d+\)")
"""The frame of next() of a DataLoader."""
LIBRARY_PATH = re.compile(r"/(site|dist)-packages/")
"""The part by which the path of a file shows that it belongs to an installed library."""
MAIN_THREAD = "MainThread"
"""The main thread's name in the output of py-spy."""
NOT_PREDICTED = (
    "Nothing is predicted: samples show neither batches nor workers, as `fastloop attach <script>` "
    "does"
)


def describe_process(pid: int, seconds: float) -> str:
    """The share of samples in next(), by place of the script, after this many seconds.

    Raises Unsupported, with the reason, if the process can't be sampled.
    """
    samples = _sample(pid, seconds)
    total = sum(count for _, count in samples)
    if not total:
        raise Unsupported(f"process {pid} has no main thread that runs Python")
    places: Counter[str] = Counter()
    for frames, count in samples:
        if place := _place_of_next(frames):
            places[place] += count
    waits = show_percent(places.total() / total)
    by_place = [f"{show_percent(count / total)} at {place}" for place, count in places.items()]
    seen = f"in {waits} of {total} samples the main thread of process {pid} was in next() of a "
    return f"{seen}DataLoader{': ' if by_place else ''}{', '.join(by_place)}. {NOT_PREDICTED}."


def _sample(pid: int, seconds: float) -> list[tuple[list[str], int]]:
    """The frames of the main thread, outermost first, with the number of their samples.

    Raises Unsupported, with the reason, if the process can't be sampled.
    """
    program = _find_program()
    if not psutil.pid_exists(pid):
        raise Unsupported(f"there is no process {pid}")
    with tempfile.TemporaryDirectory(prefix="fastloop-") as folder:
        path = Path(folder) / "samples"
        command = [program, "record", "--pid", str(pid), "--duration", f"{max(1, round(seconds))}"]
        command += ["--rate", str(SAMPLES_PER_S), "--format", "raw", "--output", str(path)]
        command += ["--threads", "--idle", "--full-filenames", "--nonblocking"]
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if ended.returncode or not path.exists():
            raise Unsupported(_find_reason(pid, ended.stderr))
        text = path.read_text(encoding="utf-8", errors="replace")
    # Each line: thread (<id>): <name>;<frame>;<frame> <number of samples>
    rows = [line.rpartition(" ") for line in text.splitlines()]
    stacks = [(stack.split(";"), int(count)) for stack, _, count in rows]
    return [(frames[1:], count) for frames, count in stacks if frames[0].endswith(MAIN_THREAD)]


def _find_program() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    if program := str(beside) if beside.exists() else shutil.which("py-spy"):
        return program
    raise Unsupported("a running process is sampled by py-spy, which is not installed")


def _find_reason(pid: int, errors: str) -> str:
    if "ermission" in errors or "not permitted" in errors:
        return f"the system does not let this user look into process {pid} (ptrace)"
    if "Failed to find python version" in errors:
        return f"process {pid} is not a Python process"
    first = next((line for line in errors.splitlines() if line.startswith("Error:")), errors)
    return f"py-spy can't sample process {pid}: {first.removeprefix('Error: ').strip()}"


def _place_of_next(frames: list[str]) -> str:
    """File and line of the script that called next(); empty if the stack has no such call."""
    found = next((n for n, frame in enumerate(frames) if IN_NEXT.search(frame)), None)
    if found is None:
        return ""
    callers = [match for frame in frames[:found] if (match := FRAME.fullmatch(frame))]
    own = [each for each in callers if not LIBRARY_PATH.search(each["path"])] or callers
    return f"{Path(own[-1]['path']).name}:{own[-1]['line']}" if own else "an unknown place"
