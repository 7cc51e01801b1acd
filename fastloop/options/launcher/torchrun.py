"""`launcher=torchrun`: several ranks per trial; under torchrun, perhaps on several machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt, model_validator

from fastloop.core.launcher import RankAnswer, RankTask
from fastloop.core.types import Unsupported, option
from fastloop.processes.rank_children import RankWork
from fastloop.processes.rank_commands import followers_of
from fastloop.processes.rank_group import Backend
from fastloop.processes.run_ranks import run_ranks
from fastloop.processes.start_method import Isolation
from fastloop.processes.torchrun_env import torchrun_process


@option
class TorchrunLauncher:
    """Runs each trial in several processes, the ranks of one process group.

    The ranks are started as torchrun would start them. If fastloop itself runs under torchrun, on
    one node or on several, each of torchrun's processes starts one rank.
    """

    nproc_per_node: PositiveInt | None
    """Number of ranks on this machine; None: the number of GPUs, or 1 without a GPU. Under
    torchrun: None, or the number of processes that torchrun has started on this machine."""
    backend: Backend
    """Backend of the process group; auto: nccl between CUDA devices, gloo between CPUs."""
    isolation: Isolation
    """forkserver: a rank's process is forked from a server that has imported torch; spawn: a new
    Python is started."""
    environment: Path | None = None
    """Folder of the environment that the job's requirements need, at the same path on every node;
    None: the job has no such requirements."""

    @model_validator(mode="after")
    def _agrees_with_torchrun(self) -> TorchrunLauncher:
        """Raise ValueError if torchrun has started another number of processes."""
        process = torchrun_process()
        ranks = self.nproc_per_node
        if process and ranks not in (None, process.local_world_size):
            reason = f"torchrun has started {process.local_world_size}"
            raise ValueError(f"launcher.nproc_per_node={ranks}: {reason}; leave it out")
        return self

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        process = torchrun_process()
        return process.world_size if process else self._ranks

    @property
    def _ranks(self) -> int:
        """Number of ranks that this process starts."""
        # Each of torchrun's processes starts one rank.
        if torchrun_process():
            return 1
        return self.nproc_per_node or torch.cuda.device_count() or 1

    def check(self, device: torch.device) -> None:
        """Raise Unsupported if the ranks of this node can't run on the device.

        The reason is backend=nccl on a device other than CUDA, or fewer GPUs than ranks.
        """
        if self.backend == "nccl" and device.type != "cuda":
            raise Unsupported(f"launcher.backend=nccl needs CUDA devices, device is {device.type}")
        process = torchrun_process()
        gpus = torch.cuda.device_count()
        local = process.local_world_size if process else self._ranks
        # NCCL refuses two ranks on one GPU.
        if device.type == "cuda" and self.backend != "gloo" and local > gpus:
            reason = f"one GPU each, got {gpus}; launcher.backend=gloo lets ranks share a GPU"
            raise Unsupported(f"{local} ranks on this node need {reason}")

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """The value of function(*args), called in a new process, which is a group of one rank.

        timeout_s: maximum time of the call in seconds; None: no limit. Raises JobFailed.
        """
        work = self._work(RankTask(function=function, args=args), 1, timeout_s, observed=False)
        return run_ranks(work)[0].value

    def call_ranks(
        self, task: RankTask, *, timeout_s: float | None = None, observed: bool = False
    ) -> list[RankAnswer]:
        """The answers of all ranks, by rank, each from a new process.

        timeout_s: maximum time of the task in seconds; None: no limit. observed: sample the
        resources of each rank. Raises JobFailed with the failure that has caused the others.
        """
        process = torchrun_process()
        work = self._work(task, self._ranks, timeout_s, observed)
        return run_ranks(work, followers_of(process) if process else None)

    def _work(
        self, task: RankTask, ranks: int, timeout_s: float | None, observed: bool
    ) -> RankWork:
        """The task, with the settings by which its ranks are started."""
        return RankWork(
            task=task,
            isolation=self.isolation,
            backend=self.backend,
            ranks=ranks,
            timeout_s=timeout_s,
            observed=observed,
            environment=self.environment,
        )
