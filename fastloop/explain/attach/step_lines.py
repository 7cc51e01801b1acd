"""The lines of a script at which its steps wait, by samples of the stack of a loop's thread.

A thread of the script's process looks at the loop's thread some 50 times a second while it steps,
which takes less than 1 % of a core. Time in which the loop's thread did not compute between two
samples is counted for the line at which the second one finds it.
"""

from __future__ import annotations

import _thread
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from types import FrameType, ModuleType
from typing import Any

from fastloop.core.spans import cpu_ns_of, now_ns, pause
from fastloop.explain.attach.loader_places import OWN_FOLDER, is_library
from fastloop.explain.attach.recorded_processes import open_script_log
from fastloop.explain.attach.torch_hooks import STATE
from fastloop.observe.event_log import EventLog

INTERVAL_S = 0.02
FIRST_NS, GROWTH = 200_000_000, 1.5
"""The first fact is written after so many nanoseconds of waits, and the next one when there are so
many times as many."""
MOST_LINES = 10
STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))


def watch_steps(module: ModuleType, folder: str) -> None:
    """Wrap next() of the iterators of torch.utils.data.dataloader, which the probe has wrapped."""
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = StepSampler(open_script_log(folder)).wrap_next(iterator.__next__)


class StepSampler:
    """Samples the thread that steps on batches, if this process has one."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.process_id = 0
        """The process whose thread is sampled; a fork begins anew."""
        self.number: int | None = None
        """Number of the pass of the present step; None: there is no step."""

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The iterators' __next__, between two of which there is a step."""

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            self.number = None
            batch = original(iterator)
            state = getattr(iterator, STATE, None)
            if state is not None:
                if self.process_id != os.getpid():
                    self.process_id = os.getpid()
                    # threading would list it among the script's threads.
                    _thread.start_new_thread(self._sample, (get_ident(),))
                self.number = state.number
            return batch

        return __next__

    def _sample(self, thread_id: int) -> None:
        """Sample the thread until it or the process ends."""
        waits: Counter[str] = Counter()
        number, last, written_ns = None, (0, 0), FIRST_NS / GROWTH
        while True:
            pause(INTERVAL_S)
            try:
                times = now_ns(), cpu_ns_of(thread_id)
            # The thread has ended.
            except OSError:
                return
            if number != self.number:
                number = self.number
                waits.clear()
                written_ns = FIRST_NS / GROWTH
            elif number is not None and (line := find_line(sys._current_frames().get(thread_id))):
                waits[line] += max(0, times[0] - last[0] - (times[1] - last[1]))
            last = times
            if number is not None and waits.total() > GROWTH * written_ns:
                written_ns = waits.total()
                self.log.add_fact(waits_of=number, lines=dict(waits.most_common(MOST_LINES)))


def find_line(frame: FrameType | None) -> str:
    """Path and number of the innermost line of the script's own code; empty if there is none."""
    while frame is not None:
        path = frame.f_code.co_filename
        is_own = os.path.dirname(path) == OWN_FOLDER
        if not (is_own or is_library(path) or path.startswith((STANDARD_LIBRARY, "<"))):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
