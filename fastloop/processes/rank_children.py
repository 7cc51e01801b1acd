"""Start the child processes that run ranks, and find the code that they execute.

A rank is one of the processes that make a call together. If torchrun has started several processes
of fastloop, each of them starts one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastloop.core.launcher import RankTask
from fastloop.processes.child_process import Call, Child, start_child
from fastloop.processes.positions import NO_STACK, locate_processes
from fastloop.processes.rank_group import Backend, RankSpec
from fastloop.processes.start_method import Isolation
from fastloop.processes.torchrun_env import TorchrunProcess

NO_LIMIT_S = 2_000_000.0
"""Time limit of a collective, in seconds, if the call has none: 23 days."""


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """A task, and the settings with which its ranks are started."""

    task: RankTask
    isolation: Isolation
    backend: Backend | None
    """Backend of the ranks' group; None: a single rank without a group."""
    ranks: int
    """Number of ranks that each process of fastloop starts; 1 under torchrun."""
    timeout_s: float | None
    """Time limit of the call; None: no limit."""
    observed: bool
    """True: the resources of each rank are sampled while it works."""
    environment: Path | None = None
    """Folder of the environment in which the ranks run; None: this process's own."""


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """A rank that has not answered, and its position in the code."""

    rank: int
    location: str = NO_STACK
    """The code that the rank, its threads and its workers execute, in words such as `in <function>
    (<file>:<line>), worker 0 (pid <id>) in <function> (<file>:<line>)`."""
    stack: str = ""
    """The stacks of the rank and its workers; empty if they did not respond."""


def rank_calls(process: TorchrunProcess, work: RankWork, number: int) -> list[Call]:
    """The call of each rank that this process starts; all ranks are parts of one group.

    process: this process, as torchrun numbers it. number: number of the call, equal in all
    processes.
    """
    assert work.backend is not None
    specs = [
        RankSpec(
            rank=process.rank * work.ranks + index,
            world_size=process.world_size * work.ranks,
            local_rank=process.local_rank * work.ranks + index,
            local_world_size=process.local_world_size * work.ranks,
            host=process.address.host,
            port=process.address.port,
            # The prefix differs from call to call, because torch's store may still hold keys of an
            # earlier call, see run_ranks.py.
            prefix=f"{process.address.prefix}/call-{number}",
            backend=work.backend,
            # torch's collectives need a limit, even if the call has none.
            timeout_s=work.timeout_s or NO_LIMIT_S,
        )
        for index in range(work.ranks)
    ]
    task = work.task
    return [
        Call(function=task.function, args=task.args, number=number, spec=spec) for spec in specs
    ]


@contextmanager
def start_children(calls: list[Call], work: RankWork) -> Iterator[list[Child]]:
    """Start a child process for each call, and yield the children.

    All children have ended when the context ends.
    """
    with ExitStack() as stack:
        started = [start_child(work.isolation, call, work.environment) for call in calls]
        yield [stack.enter_context(each) for each in started]


def locate_child(child: Child) -> RankPosition:
    """Find the code that a child and its workers execute, by their stacks."""
    location, stack = locate_processes(child)
    return RankPosition(rank=child.call.rank, location=location, stack=stack)
