"""Show the progress of a measurement by a bar on a terminal, and by lines elsewhere.

A step is a piece of the measurement with a name, such as a trial of a job. A round has several
steps. Lines are printed for finished rounds, or for steps that begin.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

from tqdm import tqdm
from tqdm.auto import tqdm as auto_tqdm

from fastloop.core.bars import in_notebook, shows_bars
from fastloop.core.result import Result
from fastloop.core.spans import now_ns, seconds_between

BAR = "{percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}] {desc}"
"""The format of a bar's line, for tqdm."""
BAR_WIDTH = 48
"""Maximum number of columns of the bar and its figures, without the step's name."""
START_WIDTH = 14
"""Number of characters that are kept at the start of a cut name, as in `trial 12 of ra`."""
LONG_S = 60.0
"""If the rounds of `bench` or `bench_all` will take at least these seconds, and there is no time
limit, the time is announced before the first round."""
LINE_INTERVAL_S = 10.0
"""Minimum seconds between two lines, except lines about rounds of a sweep."""
TICK_S = 1.0
"""Seconds between two drawings of a bar, so that its clock moves during a long step. A drawing
takes about 0.1 ms in the command's process, and trials run in other processes."""
PERCENT = 100
"""The length of the bar of a budget, which shows the percentage that has been spent."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Functions that a sweep calls as it proceeds; by default they do nothing."""

    begin_step: Callable[[str], None] = lambda _: None
    """Called with the name of each step as it begins."""
    end_round: Callable[[str], None] = lambda _: None
    """Called with a line about each round, or about the explanation of a job, at its end."""
    expect_steps: Callable[[int], None] = lambda _: None
    """Called when there is a better estimate of the number of steps that are still to begin."""
    tell: Callable[[str], None] = lambda _: None
    """Called with a line that stays on the terminal."""
    show_results: Callable[[list[Result], Mapping[str, float]], None] = lambda *_: None
    """Called with the results and the seconds of the command's stages, once nothing more is
    measured and before the results are logged."""
    close: Callable[[], None] = lambda: None
    """Called before other lines are printed, to remove the bar."""


@contextmanager
def show_progress(num_steps: int, label: str = "") -> Iterator[Progress]:
    """Show a bar if stderr is a terminal, or else print lines.

    The bar has a clock and the remaining time. Yields the functions that the sweep calls as it
    proceeds.

    num_steps: approximate number of all steps; `expect_steps` replaces this estimate.
    label: for a command without rounds, the first word of the lines about its steps; empty: the
    command has rounds, and prints a line for each round.
    """
    # A log or a pipe would get every drawing of a bar as a line.
    if not sys.stderr.isatty():
        yield _step_lines(num_steps, label) if label else _LINES
        return
    with _Bar(num_steps, dynamic_ncols=True) as bar:
        steps_begun = 0

        def begin_step(step: str) -> None:
            nonlocal steps_begun
            # The step before this one is done.
            bar.update(min(1, steps_begun))
            steps_begun += 1
            bar.total = max(bar.total, steps_begun)
            _name_step(bar, step)

        def expect_steps(count: int) -> None:
            bar.total = steps_begun + count

        yield Progress(
            begin_step=begin_step, expect_steps=expect_steps, tell=_write_line, close=bar.close
        )


def _step_lines(num_steps: int, label: str) -> Progress:
    """A Progress that prints a line as a step begins, at most one in LINE_INTERVAL_S.

    num_steps: approximate number of all steps. label: the first word of each line.
    """
    spacing = _Spacing()
    begun, total = 0, num_steps

    def begin_step(step: str) -> None:
        nonlocal begun, total
        done = begun
        begun += 1
        total = max(total, begun)
        if done and spacing.is_due():
            title = f"{label}: step {begun} of {total}, {step}"
            _print_line(round_line(title, spacing.start_ns, done, total - done))

    def expect_steps(count: int) -> None:
        nonlocal total
        total = begun + count

    return replace(_LINES, begin_step=begin_step, expect_steps=expect_steps)


@contextmanager
def show_budget(share: Callable[[], float]) -> Iterator[Progress]:
    """Show the progress of a command with a budget of time or trials, as show_progress does.

    The bar shows the percentage of the budget that has been spent.

    share: returns the share of the budget that has been spent; more than 1 is shown as 100 %.
    """
    if not sys.stderr.isatty():
        yield _LINES
        return
    with _Bar(PERCENT, lambda: _percent(share), dynamic_ncols=True) as bar:

        def begin_step(step: str) -> None:
            bar.n = _percent(share)
            _name_step(bar, step)

        yield Progress(begin_step=begin_step, tell=_write_line, close=bar.close)


def round_line(
    title: str, start_ns: int, done: int, left: int, limit_s: float | None = None
) -> str:
    """A line with the title, the elapsed time, and the time that the remaining steps will take.

    Each remaining step is expected to take as long as the mean of the finished steps.

    start_ns: start of the measurement. done, left: numbers of finished steps, at least 1, and of
    remaining ones. limit_s: seconds after `start_ns` from which no further step begins; None: there
    is no limit.
    """
    elapsed_s = seconds_between(start_ns, now_ns())
    left_s = elapsed_s / done * left
    if limit_s is not None:
        left_s = min(left_s, max(0.0, limit_s - elapsed_s))
    shown = tqdm.format_interval(left_s)
    return f"{title}: {tqdm.format_interval(elapsed_s)} elapsed, about {shown} left"


@contextmanager
def round_reports(
    rounds: int, label: str, limit_s: float | None = None
) -> Iterator[Callable[[], None]]:
    """Report the rounds of a measurement to stderr; yields a function to call after each round.

    The function moves a bar on a terminal or in a notebook. Elsewhere it prints a line, at most one
    in LINE_INTERVAL_S; short measurements print nothing.

    rounds: number of rounds. label: the first word of a line, such as `bench`. limit_s: seconds
    after the call from which no further round begins; None: there is no limit.
    """
    if shows_bars():
        with _open_bar(rounds, label) as bar:
            yield lambda: bar.update(1)
        return
    spacing = _Spacing()
    done = 0

    def end_round() -> None:
        nonlocal done
        done += 1
        if done < rounds and spacing.is_due():
            title = f"{label}: round {done} of {rounds}"
            _print_line(round_line(title, spacing.start_ns, done, rounds - done, limit_s))

    yield end_round


def announce_rounds(label: str, rounds: int, round_s: float) -> None:
    """Print the expected time of all rounds of a measurement to stderr, if it is at least LONG_S.

    label, rounds: as for round_reports. round_s: approximate seconds of a round.
    """
    if rounds * round_s >= LONG_S:
        each = tqdm.format_interval(round_s)
        whole = tqdm.format_interval(rounds * round_s)
        ways = "seconds= and batches= shorten that"
        _print_line(f"{label}: {rounds} rounds of about {each}, {whole} in all; {ways}")


@contextmanager
def share_reports(label: str, share: Callable[[], float]) -> Iterator[Callable[[str], None]]:
    """Report the steps of a measurement with a budget to stderr, as round_reports does.

    Yields a function to call with the name of each step as it begins.

    label: the first word of a line. share: as for show_budget.
    """
    if shows_bars():
        with _open_bar(PERCENT, label, lambda: _percent(share)) as bar:

            def name_step(step: str) -> None:
                bar.update(_percent(share) - int(bar.n))
                _name_step(bar, f"{label}: {step}")

            yield name_step
        return
    spacing = _Spacing()

    def begin_step(step: str) -> None:
        if spacing.is_due():
            elapsed = tqdm.format_interval(seconds_between(spacing.start_ns, now_ns()))
            _print_line(f"{label}: {elapsed} elapsed, {_percent(share)} % of the budget: {step}")

    yield begin_step


class _Bar(tqdm):
    """A bar on a terminal that draws itself every TICK_S seconds until it is closed.

    total: length of the bar. count: returns the position of the bar, and is called before each of
    these drawings; None: the bar moves only by `update`. settings: further settings of tqdm.
    """

    # With 0, tqdm does not start its monitor thread, which would never end.
    monitor_interval = 0

    def __init__(self, total: int, count: Callable[[], int] | None = None, **settings: Any) -> None:
        self._count = count
        self._is_closed = Event()
        self._thread = Thread(target=self._tick, daemon=True)
        super().__init__(total=total, bar_format=BAR, leave=False, **settings)
        self._thread.start()

    def _tick(self) -> None:
        while not self._is_closed.wait(TICK_S):
            if self._count is not None:
                self.n = self._count()
            self.refresh()

    def close(self) -> None:
        """Remove the bar."""
        self._is_closed.set()
        # A drawing after the bar was closed would leave a line behind.
        if self._thread.is_alive():
            self._thread.join()
        super().close()


def _open_bar(total: int, label: str, count: Callable[[], int] | None = None) -> Any:
    """A bar on a terminal, or a widget in a notebook, to be used as a context.

    total, count: as for `_Bar`; a widget moves only by `update`.
    """
    if in_notebook():
        return auto_tqdm(total=total, desc=label, leave=False)
    return _Bar(total, count, desc=label)


def _name_step(bar: Any, step: str) -> None:
    """Draw the bar with the name of the step that begins."""
    columns = shutil.get_terminal_size().columns
    bar.set_description_str(cut_middle(step, columns - BAR_WIDTH))


def cut_middle(text: str, width: int) -> str:
    """The text, with its middle replaced by an ellipsis if it is longer than `width`."""
    # The middle is cut, because the names of a sweep differ at their ends.
    if len(text) <= width:
        return text
    start = min(START_WIDTH, max(0, width - 1) // 2)
    end = max(0, width - 1 - start)
    return f"{text[:start]}…{text[len(text) - end :]}"


def _percent(share: Callable[[], float]) -> int:
    """The share of a budget that has been spent in percent, at most 100."""
    return min(PERCENT, int(PERCENT * share()))


class _Spacing:
    """Decides whether a line may be printed now: at most one line in LINE_INTERVAL_S."""

    def __init__(self) -> None:
        self.start_ns = self.last_ns = now_ns()

    def is_due(self) -> bool:
        """True if LINE_INTERVAL_S have passed since the last line, or since the start.

        A call that returns True makes the present time that of the last line.
        """
        if seconds_between(self.last_ns, now_ns()) < LINE_INTERVAL_S:
            return False
        self.last_ns = now_ns()
        return True


def _write_line(line: str) -> None:
    """Print the line to stderr, above the bar."""
    # print would tear the bar apart.
    tqdm.write(line, file=sys.stderr)


def _print_line(line: str) -> None:
    """Print the line to stderr, at once."""
    print(line, file=sys.stderr, flush=True)


_LINES = Progress(end_round=_print_line, tell=_print_line)
"""A Progress that prints lines, for a log or a pipe."""
