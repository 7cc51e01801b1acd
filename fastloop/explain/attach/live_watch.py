"""Watch the script of `fastloop attach` while it runs, in a thread of the command.

The thread reads the records, which are events that the script's processes write to a folder. It
shows a line about the script's loop at the bottom of a terminal, and reports a loop that hangs.
After a SIGUSR1 it prints the findings so far.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from fastloop.explain.attach.stack_files import USER_STACKS_FILE
from fastloop.explain.attach.status_line import StatusLine, open_status_line
from fastloop.observe.event_log import SUFFIX

if TYPE_CHECKING:
    from fastloop.explain.attach.live_loops import LiveLoop, LiveLoops

STDERR = 2
"""Descriptor of stderr, which may be closed."""
PERIOD_S = 2.0
"""Maximum seconds between two looks at the records."""
OWN_HANDLER = (
    "fastloop: the script has its own handler of SIGUSR1, which has received the signal: no report"
)
"""Message in place of a report, for a script that handles SIGUSR1 itself."""


@dataclass
class _LoopStill:
    """The state of a loop since its processes last recorded anything."""

    still_s: float = 0.0
    """Seconds without a new record: the number of looks at the records, times their period."""
    cpu_s: dict[int, float] = field(default_factory=dict)
    """Process id -> CPU seconds of the process when half of LiveWatch.hang_s had passed."""
    read_at_s: float = 0.0
    """The value of `still_s` when `cpu_s` was read, in seconds."""
    is_told: bool = False
    """True once the loop counts as hanging, so that it is not reported again."""


class LiveWatch:
    """A watch over a script, by its records; a look at the records costs the script no time.

    folder: folder of the records. report: prints the findings so far. line: the status line; None:
    no line is shown. hang_s: seconds without a new record after which a loop counts as hanging.
    pause: waits for a number of seconds. tell: prints a text.
    """

    def __init__(
        self,
        folder: Path,
        report: Callable[[], object],
        line: StatusLine | None,
        *,
        hang_s: float,
        pause: Callable[[float], object],
        tell: Callable[[str], object],
    ) -> None:
        self.folder = folder
        self.hang_s = hang_s
        self.period_s = min(PERIOD_S, hang_s / 4)
        self._report = report
        self._line = line
        self._tell = tell
        self._pause = pause
        self._loops: LiveLoops | None = None
        self._still: dict[int, _LoopStill] = {}
        """Id of a loop's process -> the state of the loop."""
        self._told_steps: set[str] = set()
        """Places of the loops with a step that was reported."""
        self._asked_bytes = 0
        """Size of the file of stacks, in bytes, at the latest report."""
        self._looks_since_signal = 0
        """1 after a SIGUSR1, and 1 more after each look; 0: no answer is awaited."""

    def note_signal(self) -> None:
        """Note that the command has passed SIGUSR1 on to the script."""
        self._looks_since_signal = 1

    def look(self) -> None:
        """Read the new records, draw the status line, and print a report if one is due.

        The caller calls `look` every `period_s` seconds.
        """
        self._answer_signal()
        live = self._open_loops()
        if not live:
            return
        moved = live.update()
        loops = live.loops()
        for loop in loops:
            self._check(loop, moved)
        if self._line and loops:
            self._line.show(self._describe(live, loops[-1]))

    def close(self) -> None:
        """Erase the status line, if there is one."""
        if self._line:
            self._line.erase()

    def _open_loops(self) -> LiveLoops | None:
        """The loops of the script; None if its processes have written no records yet."""
        # Importing live_loops.py takes a third of a second. A script without a loop is spared it.
        if self._loops is None and any(self.folder.glob(f"*{SUFFIX}")):
            from fastloop.explain.attach.live_loops import LiveLoops

            self._loops = LiveLoops(self.folder)
        return self._loops

    def _print(self, show: Callable[[], object]) -> None:
        """Erase the status line, and call a function that prints."""
        self.close()
        show()

    def _answer_signal(self) -> None:
        """Print a report if the script has answered a SIGUSR1 by writing its stacks."""
        path = self.folder / USER_STACKS_FILE
        size = path.stat().st_size if path.exists() else 0
        if size > self._asked_bytes:
            self._asked_bytes = size
            self._looks_since_signal = 0
            self._print(self._report)
        # The script needs a moment to answer: a missing answer is reported after two further looks.
        elif self._looks_since_signal > 2:
            self._looks_since_signal = 0
            self._print(lambda: self._tell(OWN_HANDLER))
        elif self._looks_since_signal:
            self._looks_since_signal += 1

    def _check(self, loop: LiveLoop, moved: set[int]) -> None:
        """Report the loop once if its processes record nothing for `hang_s` seconds.

        moved: ids of the processes that have recorded something since the last look.
        """
        if moved & {loop.process_id, *loop.pids}:
            self._still[loop.process_id] = _LoopStill()
            return
        still = self._still.setdefault(loop.process_id, _LoopStill())
        # The time is counted in looks, because a clock would go on while all processes are stopped.
        still.still_s += self.period_s
        if still.is_told or still.still_s < self.hang_s / 2:
            return
        # The import is left to a loop that may hang: other scripts are spared it.
        from fastloop.explain.attach.hangs import read_cpu_s

        # Processes that can't be read have ended, as those of a script's child that has left its
        # loop: then `cpu_s` stays empty, and nothing is reported.
        if not still.cpu_s:
            still.cpu_s = read_cpu_s(loop)
            still.read_at_s = still.still_s
        elif still.still_s >= self.hang_s:
            still.is_told = True
            self._report_hang(loop, still)

    def _report_hang(self, loop: LiveLoop, still: _LoopStill) -> None:
        """Report that the loop hangs, unless its step was reported before."""
        from fastloop.explain.attach.hangs import describe_hang, read_cpu_s

        # Every step of a loop may be long, so steps at one place are reported only once.
        if not loop.is_waiting:
            if loop.place in self._told_steps:
                return
            self._told_steps.add(loop.place)
        # Process id -> the cores that the process has kept busy since `still.cpu_s` was read.
        cores = {
            pid: (cpu_s - still.cpu_s[pid]) / (still.still_s - still.read_at_s)
            for pid, cpu_s in read_cpu_s(loop).items()
            if pid in still.cpu_s
        }
        text = describe_hang(loop, still.still_s, cores, self.folder, self._pause)
        self._print(lambda: self._tell(text))

    def _describe(self, live: LiveLoops, loop: LiveLoop) -> str:
        """The text of the status line; if the loop stands still, the text says for how long."""
        still_s = self._still[loop.process_id].still_s
        if still_s < 2 * self.period_s:
            return f"fastloop: {live.describe(loop)}"
        does = "waits for a batch" if loop.is_waiting else "is in its step"
        return f"fastloop: {live.describe(loop)}; now {does} for {still_s:.0f} s"


@contextmanager
def watch_script(
    folder: Path, report: Callable[[], object], hang_s: float
) -> Iterator[Callable[[], None]]:
    """Watch a script in a thread until the context ends.

    folder, report, hang_s: see LiveWatch. Yields a function, which the caller calls when it has
    passed SIGUSR1 on to the script.
    """
    has_ended = Event()
    watch = LiveWatch(
        folder,
        report,
        open_status_line(STDERR),
        hang_s=hang_s,
        pause=has_ended.wait,
        tell=lambda text: os.write(STDERR, f"{text}\n".encode()),
    )

    def watch_until_end() -> None:
        while not has_ended.wait(watch.period_s):
            try:
                watch.look()
            # An error of the records or of the terminal ends only the watch: the script goes on.
            except Exception as error:
                watch.close()
                print(f"fastloop: the script is no longer watched: {error!r}", file=sys.stderr)
                return

    thread = Thread(target=watch_until_end, daemon=True)
    # The thread blocks all signals, so that they reach the main thread, which waits for them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield watch.note_signal
    finally:
        has_ended.set()
        # The thread ends before the line is erased: a line that it drew later would stay.
        thread.join()
        watch.close()
