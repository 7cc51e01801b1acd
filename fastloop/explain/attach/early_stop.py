"""End an observed script before its own end, after enough batches of its main loop or a time."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from fastloop.core.spans import now_ns

LONGEST_WAIT = 10
"""While there is a DataLoader over which no loop has begun, an evaluation ends the script only
after this many times the batches that were asked for."""
EXITS_OF_SHORTENED_RUN = 2
"""Number of times that SystemExit is raised in a shortened run before the script is ended by force.
SystemExit lets the script's own code for the end run."""
EXITS_OF_OBSERVED_RUN = 20
"""Minimum number of times that SystemExit is raised in an observed run, once for each further
batch, before the script is ended by force. Chosen by hand: a search over hyperparameters may catch
SystemExit in as many trials."""
CLEAN_UP_S = 10.0
"""Maximum seconds that functions of `atexit` have if the script is ended by force."""
FLUSH_S = 1.0
"""Maximum seconds to write the output of functions of `atexit`: a full pipe may block forever."""
STOP_FILE = "stop.json"
"""Name of the file, in the folder to which the processes record, that asks for an early end."""
_FORCED_END = threading.Lock()
"""The thread that ends this process by force has acquired it, and never releases it."""


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """The reasons to end an observed script early; a reason that is None does not count."""

    batches: int | None = None
    """End the script once its main loop, see StopCounter, has worked on this many batches."""
    seconds: float | None = None
    """End the script at the first step that ends at least this many seconds after the import of
    torch's DataLoader."""


def ask_for_stop(folder: Path, stop: EarlyStop) -> None:
    """Ask the script's processes, which record their work to the folder, to end early."""
    (folder / STOP_FILE).write_text(json.dumps(asdict(stop)))


def read_stop(folder: Path) -> EarlyStop | None:
    """The early end that the folder asks for; None: the script ends by itself."""
    try:
        return EarlyStop(**json.loads((folder / STOP_FILE).read_text()))
    except FileNotFoundError:
        return None


@dataclass
class LoopSteps:
    """The steps of a loop so far."""

    is_training: bool
    """True if gradients are on while the loop asks for batches, unlike in an evaluation."""
    steps: int = 0
    """Number of steps."""
    steps_ns: int = 0
    """Nanoseconds of these steps together."""


class StopCounter:
    """Counts the steps of each loop, and ends the script as `sys.exit(0)` does.

    The steps of the main loop are compared with the batches that were asked for. The main loop is
    the loop with the most time in its steps so far. A loop without gradients, such as an
    evaluation, is the main loop only if no loop has gradients. Such a main loop ends the script
    only after each DataLoader has been used, or after LONGEST_WAIT times the batches.
    """

    def __init__(self, stop: EarlyStop) -> None:
        self.stop = stop
        self.start_ns = now_ns()
        self.loops: dict[tuple[str, str], LoopSteps] = {}
        self.ends = 0
        """Number of attempts so far to end the script."""

    def count_step(
        self, loop: tuple[str, str], step_ns: int, has_unused: Callable[[], bool] = lambda: False
    ) -> None:
        """Count a step of a loop, and end the script after the last step that was asked for.

        The last call does not return. loop: (place of the loop, place that makes its DataLoader).
        step_ns: nanoseconds of the step. has_unused: returns True if there is a DataLoader over
        which no loop has begun.
        """
        # The command that asks for the end imports this module, too, and starts faster without
        # torch.
        import torch

        is_training = torch.is_grad_enabled()
        counted = self.loops.get(loop) or self.loops.setdefault(loop, LoopSteps(is_training))
        counted.steps += 1
        counted.steps_ns += step_ns
        stop = self.stop
        spent_s = (now_ns() - self.start_ns) / 1e9
        # A copy: a loop of another thread may begin meanwhile.
        loops = [*self.loops.values()]
        main = max(loops, key=lambda each: (each.is_training, each.steps_ns))
        if self._has_batches(main, has_unused) or (
            stop.seconds is not None and spent_s >= stop.seconds
        ):
            self.ends += 1
            end_script(self.ends - 1, most=max(EXITS_OF_OBSERVED_RUN, stop.batches or 0))

    def _has_batches(self, main: LoopSteps, has_unused: Callable[[], bool]) -> bool:
        """True if the main loop has worked on enough batches."""
        batches = self.stop.batches
        if batches is None or main.steps < batches:
            return False
        # The training may begin after this evaluation. Its DataLoader is then made, but not used
        # yet, and the end of the script is put off. A script may also make a DataLoader that it
        # never uses, so LONGEST_WAIT limits the delay.
        return main.is_training or main.steps >= LONGEST_WAIT * batches or not has_unused()


@cache
def counter_of(folder: str) -> StopCounter | None:
    """The counter of this process, if the folder asks for an early end; the same at each call."""
    stop = read_stop(Path(folder))
    return StopCounter(stop) if stop else None


def end_script(earlier: int = 0, most: int = EXITS_OF_SHORTENED_RUN) -> NoReturn:
    """End the script with status 0, as `sys.exit(0)` does in the main thread.

    earlier: number of earlier calls, after which the script has gone on because it caught
    SystemExit. most: number of calls that raise SystemExit in the main thread. Further calls, and
    calls in other threads, end the process by force: a line on stderr says so, and the functions of
    `atexit` run.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and earlier < most:
        sys.exit(0)
    # If the lock is taken, a forced end is running already, and a function of atexit or another
    # thread has asked for a batch. SystemExit ends only that function or thread.
    if not _FORCED_END.acquire(blocking=False):
        sys.exit(0)
    # In another thread, SystemExit would end only that thread, and the main thread might wait for
    # it forever.
    reason = "it goes on after SystemExit" if is_main else "its loop is in a thread"
    # A function of atexit may wait forever for a thread or a process, and a write to a full pipe
    # for a reader. A timer limits the time of both.
    limit = threading.Timer(CLEAN_UP_S, _end_late)
    limit.daemon = True
    limit.start()
    with suppress(Exception):
        print(f"fastloop: the script is ended by force: {reason}", file=sys.stderr)
    # The script's output so far is written first, in case a function of atexit never ends.
    _flush_streams()
    # A child of multiprocessing may have inherited its parent's functions, which it must not run.
    if multiprocessing.parent_process() is None:
        _hide_exits()
        with suppress(Exception):
            atexit._run_exitfuncs()
    _flush_streams()
    os._exit(0)


def _hide_exits() -> None:
    """Print no traceback of a function of `atexit` that ends by SystemExit."""
    tell = sys.unraisablehook

    def tell_others(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, SystemExit):
            tell(ignored)

    sys.unraisablehook = tell_others


def _end_late() -> None:
    """Write the output of the functions of `atexit` so far, and end the process."""
    # The system may refuse a further thread; the process ends all the same.
    with suppress(Exception):
        flushing = threading.Thread(target=_flush_streams, daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)
    os._exit(0)


def _flush_streams() -> None:
    """Write the buffered output of stdout and stderr, and ignore errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
