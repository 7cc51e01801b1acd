"""Ranges of numbers that settings and options allow.

Without an upper bound a mistyped number would start that many threads, or keep that many batches.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from fastloop.core.auto_trials import AUTO

MOST_THREADS = 1024
MOST_BATCHES = 1024
MOST_SAMPLES = 2**31 - 1
MOST_SEED = 2**62

PositiveThreads: TypeAlias = Annotated[int, Field(gt=0, le=MOST_THREADS)]
"""A number of threads or processes, at least one."""
Threads: TypeAlias = Annotated[int, Field(ge=0, le=MOST_THREADS)]
"""A number of threads or processes."""
PositiveDepth: TypeAlias = Annotated[int, Field(gt=0, le=MOST_BATCHES)]
"""A number of batches that are held at the same time, at least one."""
Depth: TypeAlias = Annotated[int, Field(ge=0, le=MOST_BATCHES)]
"""A number of batches that are held at the same time."""
SampleCount: TypeAlias = Annotated[int, Field(gt=0, le=MOST_SAMPLES)]
"""A number of samples that belong together, such as a batch."""
Seed: TypeAlias = Annotated[int, Field(ge=0, le=MOST_SEED)]
"""A seed of torch's generators, which take 64 bits; there is room for numbers of trials and epochs
that are added to it."""
LearningRate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _check_trials(trials: Any) -> Any:
    """The setting as it is; raises ValueError unless it is a number of trials or `auto`."""
    is_number = isinstance(trials, int) and not isinstance(trials, bool)
    if trials != AUTO and not (is_number and trials >= 1):
        raise ValueError("allowed: auto, or a whole number from 1 on")
    return trials


Trials: TypeAlias = Annotated[int | Literal["auto"], BeforeValidator(_check_trials)]
"""A number of trials, or `auto`: trials continue until the ranking is decided."""
