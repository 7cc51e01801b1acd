"""A launcher of single processes that reads their memory all the time, and records their peaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar, Literal

import psutil
import torch

from experiments.tune.grid import FOLDER
from fastloop.core.launcher import RankAnswer, RankTask
from fastloop.core.types import option
from fastloop.options.launcher.single import SingleLauncher
from fastloop.processes.resources import MIB
from fastloop.trial.job import Job

PEAKS_FILE = FOLDER / "memory_limit.peaks"
INTERVAL_S = 0.003


@option
class WatchedLauncher:
    """The launcher of single processes, which writes the memory peak of each to a file."""

    world_size: ClassVar[int] = 1
    isolation: Literal["forkserver"]
    environment: Path | None = None

    def check(self, device: torch.device) -> None:
        """Accept every machine."""

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """Call function(*args) in a new process. Raises JobFailed."""
        return self.call_ranks(RankTask(function=function, args=args), timeout_s=timeout_s)[0].value

    def call_ranks(
        self, task: RankTask, *, timeout_s: float | None = None, observed: bool = False
    ) -> list[RankAnswer]:
        """Call the task in its one rank, and read its memory meanwhile. Raises JobFailed."""
        launcher = SingleLauncher(isolation=self.isolation, environment=self.environment)
        readings = list[int]()
        try:
            with watch_processes(readings):
                return launcher.call_ranks(task, timeout_s=timeout_s, observed=observed)
        # A call that fails has used memory, too.
        finally:
            note_peak(task, readings)


def note_peak(task: RankTask, readings: Sequence[int]) -> None:
    """Add a line with the peak of a call's processes, in MiB, to the file."""
    jobs = [each for each in task.args if isinstance(each, Job)]
    shown = {
        "function": task.function.__name__,
        "configuration": [[each.loader.option_name, each.loading.num_workers] for each in jobs],
        "readings": len(readings),
        "peak_mib": max(readings, default=0) / MIB,
    }
    with PEAKS_FILE.open("a") as file:
        file.write(json.dumps(shown) + "\n")


@contextmanager
def watch_processes(readings: list[int]) -> Iterator[None]:
    """Until the exit, append readings of the PSS, in bytes, of the processes that the fork server
    started, and of their children."""
    ended = Event()

    def read() -> None:
        while not ended.wait(INTERVAL_S):
            readings.append(read_pss())

    thread = Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_pss() -> int:
    """The PSS of all processes below this process's children, which are multiprocessing's
    servers."""
    this = psutil.Process()
    servers = {each.pid for each in this.children()}
    total = 0
    for process in this.children(recursive=True):
        if process.pid not in servers:
            # The process may have ended meanwhile.
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total
