"""The class `JobSettings`: the settings of a job that are numbers, words or flags.

They are checked before torch is imported, so that a wrong value is reported at once.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt

from fastloop.core.bounds import (
    Depth,
    LearningRate,
    PositiveDepth,
    PositiveThreads,
    SampleCount,
    Seed,
    Trials,
)
from fastloop.core.types import option

CacheState = Literal["as_is", "warm", "cold"]
MIN_WINDOW_S = 0.3
"""Default of min_window_s, the minimum length of a timed window in seconds. In such a window, the
start of a thread or a late wake-up of a process hardly changes the time."""


def _check_device(name: str) -> str:
    """Return the name; raises ValueError if it does not name a device."""
    if not re.fullmatch(r"auto|cpu|mps|cuda|cuda:\d+", name):
        hint = "; did you mean cuda?" if name == "gpu" else ""
        raise ValueError(f"allowed are auto, cpu, mps, cuda and cuda:<number>{hint}")
    return name


@option
class JobSettings:
    """The settings of a job, except its options and the settings that it shares with a DataLoader.

    The comments in conf/config.yaml state the meaning, unit, allowed values and default of each.
    """

    precision: Literal["float32", "bf16", "fp16"]
    epochs: PositiveInt
    batches: SampleCount | None = None
    trials: Trials
    min_window_s: Annotated[float, Field(ge=0, le=3600)] = MIN_WINDOW_S
    seed: Seed
    device: Annotated[str, AfterValidator(_check_device)]
    torch_threads: PositiveThreads | None
    learning_rate: LearningRate
    pinned_buffers: PositiveDepth | None
    device_prefetch: Depth
    device_prefetch_by: Literal["stream", "thread", "process"] | None
    same_data: bool
    cache: CacheState
    # poll() takes its timeout in milliseconds as a C int, at most 2^31 - 1.
    trial_timeout_s: Annotated[float, Field(gt=0, le=2_000_000)]
    build_environment: bool = False
