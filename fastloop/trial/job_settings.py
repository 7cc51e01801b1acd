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
"""State of the page cache before a timed window. warm: the job's files are read into the cache;
cold: the files are evicted from the cache; as_is: neither."""
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

    The defaults that a command line has are in conf/config.yaml.
    """

    precision: Literal["float32", "bf16", "fp16"]
    """Precision of the model: float32, or bf16 or fp16 by torch's autocast."""
    epochs: PositiveInt
    """Number of epochs of a trial."""
    batches: SampleCount | None = None
    """Number of batches in an epoch of each process, the first batches of the order; None: all
    batches."""
    trials: Trials
    """Number of timed repetitions, each in a fresh process; "auto": trials continue until the
    fastest job, or a tie, is known."""
    min_window_s: Annotated[float, Field(ge=0, le=3600)] = MIN_WINDOW_S
    """Minimum length of a timed window in seconds. Shorter epochs are repeated within the
    window."""
    seed: Seed
    """Seed of the orders and the models; trial k uses seed + 10,000 k."""
    device: Annotated[str, AfterValidator(_check_device)]
    """Device of the steps: cpu, mps, cuda or cuda:<index>; auto: an accelerator if there is one,
    else the CPU."""
    torch_threads: PositiveThreads | None
    """Number of torch's intra-op threads; None: torch's default."""
    learning_rate: LearningRate
    """Learning rate of SGD in the benchmark `training`."""
    pinned_buffers: PositiveDepth | None
    """Number of page-locked buffers in host memory through which batches are copied to a CUDA
    device; None: batches are not copied through such buffers."""
    device_prefetch: Depth
    """Number of batches that are loaded and moved to the device ahead of the step; 0: none."""
    device_prefetch_by: Literal["stream", "thread", "process"] | None
    """Means by which `device_prefetch` batches are moved ahead of the step: a CUDA stream, a thread
    or a process; None: a thread."""
    same_data: bool
    """True: the samples that a loader delivers are compared with the dataset's. False: only their
    number, dtypes and shapes are compared, and the job is not ranked."""
    cache: CacheState
    """State of the page cache before each timed window."""
    # poll() takes its timeout in milliseconds as a C int, at most 2^31 - 1.
    trial_timeout_s: Annotated[float, Field(gt=0, le=2_000_000)]
    """Time limit of a trial in seconds, and of a preparation of data that reads no sample."""
    build_environment: bool = False
    """True: a missing environment that the requirements of an option need is built."""
