"""Raw values of the instrumented pass: where the time of one epoch goes, and its resources."""

from __future__ import annotations

import math
from dataclasses import field

import pydantic
from pydantic.dataclasses import dataclass

from fastloop.core.machine_counters import LEAST_SECONDS

KEEPS_NAN = pydantic.ConfigDict(ser_json_inf_nan="constants")
"""JSON with NaN and Infinity: the loss of a diverged model is a raw value too."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a process and all its children, from start to answer; None if unknown."""

    peak_pss_mib: float | None = None
    """Proportional set size: memory that several processes share is counted once."""
    peak_shm_mib: float | None = None
    """Growth of /dev/shm by any process; parts of it that are mapped also count in the PSS."""
    peak_gpu_mib: float | None = None
    """GPU memory of these processes, including the CUDA context, as NVML reports it."""
    cpu_cores: float | None = None
    """User and system time per second; None if less than LEAST_SECONDS were observed."""
    context_switches: int | None = None
    """Voluntary and involuntary switches of all threads."""
    read_mib: float | None = None
    """MiB read from storage; data from the page cache is not counted."""
    samples: int = 0
    """Number of times that the resources were sampled."""


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class RankPass:
    """A rank in the instrumented pass: its batches, and seconds of the epoch and of its waits."""

    batches: int
    seconds: float
    wait_s: float
    place_s: float
    idle_s: float | None = None
    """Time in which the device ran no step; None if steps are timed by the host's clock."""

    @property
    def loading_s(self) -> float:
        """Time that loading cost the steps."""
        # On a device, the time of a copy includes the wait for queued work that needs other ranks.
        # By the host's clock, a fast rank would therefore seem to wait for data.
        return self.wait_s + self.place_s if self.idle_s is None else self.idle_s


@dataclass(frozen=True, kw_only=True, config=KEEPS_NAN)
class Attribution:
    """A benchmark in the instrumented pass: one epoch with spans."""

    seconds: float
    first_batch_s: float
    """Seconds from `open` until the first batch is on the device."""
    wait_s: list[float]
    """Wait for each batch of the loader."""
    place_s: list[float]
    """Duration of each placement."""
    idle_s: float | None = None
    """Time of the epoch in which the device ran no step, by CUDA events. None if steps are timed by
    the host's clock: then it is the sum of all waits and placements."""
    cpu_s: float
    """User and system time of the process and its workers in cpu_window_s."""
    cpu_window_s: float | None = None
    """Seconds of the epoch and of its repeats: a short epoch is repeated until its CPU time can be
    measured. None in older files, which have the CPU time of one epoch."""
    usable_cores: float | None = None
    """Cores that these processes may use; None in older files."""
    runs_model: bool = True
    """False if a placed batch is not used further, so that no step can wait for it."""
    step_s: float | None = None
    """Duration of a step of several ranks on resident batches; None for one process."""
    local_step_s: float | None = pydantic.Field(
        default=None, validation_alias=pydantic.AliasChoices("local_step_s", "own_step_s")
    )
    """Duration of such a step without the exchange of gradients; `own_step_s` in older files."""
    ranks: list[RankPass] = field(default_factory=list)
    """The pass of each rank; empty for one process. The fields above cover all ranks, and `seconds`
    is that of the slowest rank."""
    resources: Resources | None = None
    """Resources of the whole instrumented process and its workers, from its start over the warm-up
    epoch to the end of the epoch with spans. Another process samples them; None if that was off."""

    @property
    def cpu_cores(self) -> float | None:
        """Cores that were busy with the job, at most the usable ones; None if too little time
        was observed to tell."""
        seconds = self.seconds if self.cpu_window_s is None else self.cpu_window_s
        if seconds < LEAST_SECONDS:
            return None
        return min(self.cpu_s / seconds, self.usable_cores or math.inf)

    @property
    def stall_fraction(self) -> float:
        """Share of the epoch in which no step ran for lack of a batch; the mean over all ranks."""
        host_s = (sum(self.wait_s) + sum(self.place_s)) / max(1, len(self.ranks))
        return (host_s if self.idle_s is None else self.idle_s) / self.seconds
