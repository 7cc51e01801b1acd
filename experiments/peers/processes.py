"""Processes that live through all rounds, and are called in turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from fastloop.core.interleave import rounds

T = TypeVar("T")
START_METHOD = "spawn"
"""A new interpreter, so that it holds only the memory that its own calls need."""


@contextmanager
def processes(names: Sequence[Any]) -> Iterator[dict[Any, Callable[..., Any]]]:
    """Name -> function (function, *arguments) that calls its argument in the process of this
    name."""
    with ExitStack() as stack:
        yield {name: _start(stack) for name in names}


def measure_in_rounds(num_rounds: int, calls: Mapping[Any, Callable[[], T]]) -> dict[Any, list[T]]:
    """The results of each call, by round. The round before the first is a warm-up."""
    results: dict[Any, list[T]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _, names in rounds(dict.fromkeys(calls, num_rounds)):
        for name in names:
            results[name].append(calls[name]())
    return results


def _start(stack: ExitStack) -> Callable[..., Any]:
    pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context(START_METHOD)))
    return lambda function, *arguments: pool.submit(function, *arguments).result()
