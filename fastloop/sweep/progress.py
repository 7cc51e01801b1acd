"""Progress of a measurement: a bar on a terminal, elsewhere a line for each finished round."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm

from fastloop.core.spans import now_ns, seconds_between

BAR = "{percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}] {desc}"
BAR_WIDTH = 48
"""Maximum number of columns of the bar and its figures, without the step's name."""
START_WIDTH = 14
"""Number of characters kept of the start of a name that is cut: `trial 12 of ra`."""
LINE_INTERVAL_S = 10.0
"""Time between two lines of `round_reports`."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Functions that a sweep calls with how far it is; by default they do nothing."""

    begin_step: Callable[[str], None] = lambda _: None
    """Called with the name of each step as it begins."""
    end_round: Callable[[str], None] = lambda _: None
    """Called with a line on each round at its end."""


class _Bar(tqdm):
    monitor_interval = 0  # no monitor thread that would run during measurements


@contextmanager
def show_progress(num_steps: int) -> Iterator[Progress]:
    """A bar with an ETA if stderr is a terminal; otherwise the lines of the rounds go there."""
    if not sys.stderr.isatty():
        yield Progress(end_round=_print_line)
        return
    with _Bar(total=num_steps, bar_format=BAR, dynamic_ncols=True, leave=False) as bar:
        steps_begun = 0

        def begin_step(step: str) -> None:
            nonlocal steps_begun
            bar.update(min(1, steps_begun))  # the step before this one is done
            columns = shutil.get_terminal_size().columns
            bar.set_description_str(cut_middle(step, columns - BAR_WIDTH))
            steps_begun += 1

        yield Progress(begin_step=begin_step)


def round_line(title: str, start_ns: int, done: int, left: int) -> str:
    """The round's title with the time since `start_ns`, and the time that the steps left will take
    if each takes as long as one of those done."""
    elapsed_s = seconds_between(start_ns, now_ns())
    left_s = tqdm.format_interval(elapsed_s / done * left)
    return f"{title}: {tqdm.format_interval(elapsed_s)} elapsed, about {left_s} left"


@contextmanager
def round_reports(rounds: int, what: str) -> Iterator[Callable[[], None]]:
    """A function to call at the end of each round, which reports to stderr.

    It advances a bar on a terminal. Elsewhere it prints a line if the last one was printed, or the
    first round began, at least LINE_INTERVAL_S ago: what takes a moment stays silent.
    """
    if sys.stderr.isatty():
        with _Bar(total=rounds, bar_format=BAR, desc=what, leave=False) as bar:
            yield lambda: _advance(bar)
        return
    start_ns = printed_ns = now_ns()
    done = 0

    def end_round() -> None:
        nonlocal done, printed_ns
        done += 1
        if done < rounds and seconds_between(printed_ns, now_ns()) >= LINE_INTERVAL_S:
            printed_ns = now_ns()
            title = f"{what}: round {done} of {rounds}"
            _print_line(round_line(title, start_ns, done, rounds - done))

    yield end_round


def cut_middle(text: str, width: int) -> str:
    """The text, with its middle replaced by an ellipsis if it is wider: names differ at the end."""
    if len(text) <= width:
        return text
    start = min(START_WIDTH, max(0, width - 1) // 2)
    end = max(0, width - 1 - start)
    return f"{text[:start]}…{text[len(text) - end :]}"


def _advance(bar: tqdm) -> None:
    bar.update()


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
