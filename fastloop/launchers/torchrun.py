"""`launcher=torchrun`: several processes a trial, on this machine or on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, NonNegativeInt, PositiveInt, model_validator

from fastloop.child import Isolation
from fastloop.crew import Member, Work, answers_of, of_torchrun
from fastloop.ranks import Backend
from fastloop.resources import Resources
from fastloop.types import Unsupported, option
from fastloop.wire import Address

DEFAULT_PORT = 29400
"""torchrun's own."""


def _endpoint(given: str) -> str:
    host, _, port = given.rpartition(":") if ":" in given else (given, "", str(DEFAULT_PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("allowed is <host>:<port>, of the node with node_rank=0")
    return f"{host}:{port}"


@option
class Torchrun:
    """What torchrun would start, without it: so many processes a node, as one group.

    On a node they are started by the command itself. Of several nodes each runs the same command
    with its own `node_rank`; number 0 leads, and listens at `rdzv_endpoint`. Under torchrun itself
    its processes are taken, and these settings are its own.
    """

    nproc_per_node: PositiveInt | None
    nnodes: PositiveInt
    node_rank: NonNegativeInt
    rdzv_endpoint: Annotated[str, AfterValidator(_endpoint)] | None
    backend: Backend
    isolation: Isolation

    @model_validator(mode="after")
    def _nodes_fit(self) -> Torchrun:
        if started := of_torchrun():
            self._check_against(started)
        elif self.node_rank >= self.nnodes:
            said = f"launcher.node_rank={self.node_rank}: allowed are 0 to nnodes - 1"
            raise ValueError(f"{said}, nnodes is {self.nnodes}")
        elif self.nnodes > 1 and self.rdzv_endpoint is None:
            said = f"launcher.nnodes={self.nnodes}: launcher.rdzv_endpoint=<host>:<port> says"
            raise ValueError(f"{said} where the first node listens")
        return self

    def _check_against(self, started: Member) -> None:
        """Raise ValueError where torchrun has started something else than these settings say."""
        local, nodes = started.local_size, max(1, started.size // started.local_size)
        for name, default, own, has in [
            ("nproc_per_node", None, local, f"has started {local}"),
            ("nnodes", 1, nodes, f"has started {nodes}"),
            ("node_rank", 0, 0, "numbers them"),
            ("rdzv_endpoint", None, None, "has its own"),
        ]:
            if (value := getattr(self, name)) not in (default, own):
                raise ValueError(f"launcher.{name}={value}: torchrun {has}; leave it out")

    @property
    def member(self) -> Member:
        """What this process is among those that start ranks."""
        if started := of_torchrun():
            return started
        if self.nnodes == 1 or self.rdzv_endpoint is None:
            return Member()
        host, _, port = self.rdzv_endpoint.rpartition(":")
        return Member(
            number=self.node_rank,
            size=self.nnodes,
            address=Address(host=host, port=int(port)),
            hosts=self.node_rank == 0,
        )

    @property
    def ranks(self) -> int:
        """How many processes each member starts for a trial."""
        if of_torchrun():
            return 1
        return self.nproc_per_node or torch.cuda.device_count() or 1

    @property
    def world_size(self) -> int:
        """How many there are of all nodes together."""
        return self.member.size * self.ranks

    def check(self, device: torch.device) -> None:
        """Raise Unsupported where this node has not as many devices, or not the backend's."""
        if self.backend == "nccl" and device.type != "cuda":
            raise Unsupported(f"launcher.backend=nccl needs CUDA devices, device is {device.type}")
        local, here = self.member.local_size * self.ranks, torch.cuda.device_count()
        if device.type == "cuda" and self.backend != "gloo" and local > here:
            why = f"a GPU for each rank, {here} are here; launcher.backend=gloo lets them share"
            raise Unsupported(f"{local} ranks on this node need {why}")

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """function(*args) in one fresh process of this node. Raises JobFailed."""
        work = self._work(function, args, timeout_s)
        return answers_of(Member(), work)[0].outcome.value

    def call_ranks(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        observed: bool = False,
    ) -> list[tuple[Any, Resources | None]]:
        """function(*args) by every rank, each in a fresh process; by rank what it gave and, with
        `observed`, what it took. Raises JobFailed with the reason of the rank that failed."""
        work = self._work(function, args, timeout_s, self.ranks, observed)
        return [(one.outcome.value, one.resources) for one in answers_of(self.member, work)]

    def _work(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        timeout_s: float | None,
        ranks: int = 1,
        observed: bool = False,
    ) -> Work:
        return Work(
            function=function,
            args=args,
            isolation=self.isolation,
            observed=observed,
            ranks=ranks,
            backend=self.backend,
            timeout_s=timeout_s,
        )
