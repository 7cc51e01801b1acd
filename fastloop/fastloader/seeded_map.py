"""The making of batches by code of the user, with random draws that depend on no thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastloop.fastloader.sample_draws import draw_globally, draw_privately, find_global_draws
from fastloop.fastloader.thread_map import map_ahead

Make = Callable[[Any], Any]


@dataclass
class GlobalDraws:
    """The global generators that a loader's samples and transforms draw from."""

    names: set[str] | None = None
    """Owners of the generators that threads would have to share, see find_global_draws; None: not
    known yet."""


def map_seeded(
    make: Make, items: Iterable[Any], num_threads: int, ahead: int, draws: GlobalDraws
) -> Generator[Any, None, None]:
    """make(item) for each item, in order, by threads unless these would have to share a generator.

    The loop's thread makes a loader's first item, to find out.
    """
    if num_threads and draws.names is None:
        return _find_and_map(make, iter(items), num_threads, ahead, draws)
    if num_threads and not draws.names:
        return map_ahead(lambda item: _make_privately(make, item), items, num_threads, ahead)
    return map_ahead(lambda item: _make_globally(make, item), items, 0, ahead)


def _find_and_map(
    make: Make, items: Iterator[Any], num_threads: int, ahead: int, draws: GlobalDraws
) -> Generator[Any, None, None]:
    found: set[str] = set()
    for item in items:
        with find_global_draws(found):
            result = make(item)
        draws.names = found
        _warn(found)
        rest = map_seeded(make, items, num_threads, ahead, draws)
        try:
            yield result
            # Otherwise this frame would hold them while the threads make others.
            del result, item
            yield from rest
        finally:
            rest.close()
        return


def _warn(found: set[str]) -> None:
    if found:
        names = " and ".join(sorted(found))
        problem = f"samples are drawn from the global generators of {names}, which threads share"
        advice = "seed a generator with fastloop.sample_seed() to have them read ahead"
        warnings.warn(f"{problem}: they are read in the loop itself; {advice}", stacklevel=4)


def _make_privately(make: Make, item: Any) -> Any:
    with draw_privately():
        return make(item)


def _make_globally(make: Make, item: Any) -> Any:
    with draw_globally():
        return make(item)
