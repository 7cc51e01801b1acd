"""The progress bar of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(steps: int) -> Iterator[Callable[[str], None]]:
    """A function to call as each step begins: it advances a bar with an ETA on a terminal."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no monitor thread that would run during measurements
    with tqdm(total=steps, disable=None, ncols=79, leave=False) as bar:
        steps_begun = 0

        def advance(step: str) -> None:
            nonlocal steps_begun
            bar.update(min(1, steps_begun))  # the step before this one is done
            bar.set_description(step[:40])
            steps_begun += 1

        yield advance
