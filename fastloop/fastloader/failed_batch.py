"""Errors in the place of batches: the batches after them are delivered all the same.

DataLoader does so: next() raises the error of a sample, and the following next() has the following
batch. A program that passes over broken samples relies on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NO_BATCH: Any = object()
"""next(batches, NO_BATCH) at the end of an epoch."""


@dataclass(frozen=True, eq=False)
class FailedBatch:
    """The error that code of the user has raised in the making of the batch."""

    error: Exception


def try_batch(make: Callable[..., Any], *arguments: Any) -> Any:
    """make(*arguments), or its error in a FailedBatch.

    What ends the program, as KeyboardInterrupt does, is raised.
    """
    try:
        return make(*arguments)
    except StopIteration as error:  # it would end the loop as if there were no more
        failure = RuntimeError("the making of a batch raised StopIteration")
        failure.__cause__ = error
        return FailedBatch(failure)
    except Exception as error:
        return FailedBatch(error)
