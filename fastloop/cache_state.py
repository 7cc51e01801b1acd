"""`cache=as_is|warm|cold`: how the files of a job lie in the page cache when a window begins.

- as_is: as the warm-up epoch left them.
- warm: every byte of them is read once more after the warm-up epoch.
- cold: after the warm-up epoch, which warms code and not data, the loader is closed (a mapping
  keeps its pages), the files are evicted and the loader is opened afresh. What `open` itself reads
  is cached again when the window begins, and is told: a loader that reads everything into memory
  there can't be cold. Kept workers (`persistent_workers`) start anew, inside the window.

Only the first epoch of a cold window reads the disk, unless the data is larger than memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from fastloop.page_cache import evict, resident_fraction, warm
from fastloop.ranks import together
from fastloop.result import Result
from fastloop.types import Epochs

CacheState = Literal["as_is", "warm", "cold"]
COLD_FRACTION = 0.05
"""More than this in memory is not cold; less is a header and what was read ahead with it."""


class Opened:
    """A loader that is open, and can be closed and opened afresh."""

    def __init__(self, stack: ExitStack, open_: Callable[[], AbstractContextManager[Epochs]]):
        self._stack = stack
        self._open = open_
        self.epochs = stack.enter_context(open_())

    def afresh(self, between: Callable[[], None]) -> None:
        """Close the loader, do what is to be done without it, and open it again."""
        del self.epochs
        self._stack.close()
        gc.collect()  # a cycle may hold a mapping
        between()
        self.epochs = self._stack.enter_context(self._open())


@contextmanager
def opened(open_: Callable[[], AbstractContextManager[Epochs]]) -> Iterator[Opened]:
    """The loader that this opens; it is closed in the end."""
    with ExitStack() as stack:
        yield Opened(stack, open_)


def bring_to(
    state: CacheState, files: Sequence[Path], loading: Opened
) -> tuple[float | None, float | None]:
    """Share of the files' pages in memory before and after they were brought into that state, by
    all ranks."""
    before = resident_fraction(files)
    if state == "warm":
        warm(files)
    elif state == "cold":
        loading.afresh(lambda: evict_together(files))
    return before, resident_fraction(files)


def evict_together(files: Sequence[Path]) -> None:
    """Evict them on every node while no rank reads them: what another one maps would stay."""
    together()
    evict(files)
    together()


def cache_warnings(result: Result) -> list[str]:
    """What a reader of a run with `cache=cold` has to know, in a line each; empty for others."""
    if result.params.get("cache") != "cold" or not result.trials:
        return []
    found = [_not_cold(result), _rereads_memory(result)]
    return [one for one in found if one]


def _not_cold(result: Result) -> str:
    seen = [one.cached_fraction for trial in result.trials for one in trial.benchmarks.values()]
    told = [fraction for fraction in seen if fraction is not None]
    if not told:
        return "asked for a cold cache, the system does not tell whether it was"
    worst = max(told)
    return f"asked for a cold cache, {worst:.0%} was cached" if worst > COLD_FRACTION else ""


def _rereads_memory(result: Result) -> str:
    memory_gib, data_mib = result.environment.get("memory_gib"), result.trials[0].data_mib
    if result.params.get("epochs") == 1 or not memory_gib or data_mib is None:
        return ""
    if data_mib >= 1024 * memory_gib:
        return ""
    sizes = f"the data ({data_mib:,.1f} MiB) is smaller than memory ({memory_gib:.0f} GiB)"
    return f"{sizes}: at most the first epoch of each window reads the disk"
