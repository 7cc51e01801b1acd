"""The settings that a job shares with torch's DataLoader."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from fastloop.core.bounds import PositiveDepth, SampleCount, Threads
from fastloop.core.types import option


@option
class LoadingSettings:
    """Settings shared with torch's DataLoader, under torch's names.

    The arguments of a DataLoader, the arguments offered to a user's loader and the settings that a
    loader may honour are derived from these fields. Their defaults are in conf/config.yaml as well;
    explain and tune name the settings that they change once more.
    """

    batch_size: SampleCount = 64
    num_workers: Threads = 0
    pin_memory: bool = False
    prefetch_factor: PositiveDepth | None = None
    persistent_workers: bool = False
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    drop_last: bool = False


LOADING = tuple(field.name for field in fields(LoadingSettings))  # pyright: ignore[reportArgumentType]
