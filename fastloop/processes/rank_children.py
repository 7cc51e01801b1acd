"""Start the children that run the ranks of one fastloop process, and convert work and answers to
JSON messages between rank 0 and the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fastloop.core.launcher import RankTask
from fastloop.core.result import Resources
from fastloop.core.types import Failure
from fastloop.processes.child_process import Call, Child, Outcome, start_child
from fastloop.processes.monitor import Answer
from fastloop.processes.positions import NO_STACK, locate_processes
from fastloop.processes.rank_group import Backend, RankSpec
from fastloop.processes.start_method import Isolation
from fastloop.processes.torchrun_env import TorchrunProcess

NO_LIMIT_S = 2_000_000.0
"""Time limit of a collective, in seconds, if the call has none: 23 days."""
FAILURE = TypeAdapter(Failure | None)
RESOURCES = TypeAdapter(Resources | None)


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """A task, and the settings with which its ranks are started."""

    task: RankTask
    isolation: Isolation
    backend: Backend | None
    """Backend of the ranks' group; None: a single rank without a group."""
    ranks: int
    """Number of ranks that each process starts."""
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
    """Code that the rank and its workers execute, such as `in <function> (<file>:<line>)`."""
    stack: str = ""
    """The stacks of the rank and its workers; empty if they did not respond."""


def rank_calls(process: TorchrunProcess, work: RankWork, number: int) -> list[Call]:
    """Calls of the ranks that this process starts, as parts of one group.

    number: the call's number, equal in all processes.
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
            # Keys of an earlier call may still be in the store, see run_ranks.py.
            prefix=f"{process.address.prefix}/call-{number}",
            backend=work.backend,
            # torch needs some limit for its collectives.
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
    """Start a child for each call; on exit all of them have ended."""
    with ExitStack() as stack:
        started = [start_child(work.isolation, call, work.environment) for call in calls]
        yield [stack.enter_context(each) for each in started]


def locate_child(child: Child) -> RankPosition:
    """Locate a child and its workers in their code, by their stacks."""
    location, stack = locate_processes(child)
    return RankPosition(rank=child.call.rank, location=location, stack=stack)


def work_to_json(work: RankWork, number: int) -> dict[str, Any]:
    """The command with which rank 0 starts the call of this number in its followers."""
    return {
        "call": number,
        "command": dict(work.task.command),
        "isolation": work.isolation,
        "backend": work.backend,
        "timeout_s": work.timeout_s,
        "observed": work.observed,
        "environment": str(work.environment) if work.environment else None,
    }


def work_from_json(message: Mapping[str, Any], task: RankTask) -> RankWork:
    """The work of a follower that received this command of rank 0."""
    settings = {name: message[name] for name in ("isolation", "backend", "timeout_s", "observed")}
    environment = Path(message["environment"]) if message["environment"] else None
    return RankWork(task=task, ranks=1, environment=environment, **settings)


def answer_to_json(answer: Answer, answer_type: Any) -> dict[str, Any]:
    """A follower's answer as a message to rank 0."""
    return {
        "call": answer.number,
        "rank": answer.rank,
        "value": TypeAdapter(answer_type).dump_python(answer.outcome.value, mode="json"),
        "failure": FAILURE.dump_python(answer.outcome.failure, mode="json"),
        "resources": RESOURCES.dump_python(answer.resources, mode="json"),
    }


def answer_from_json(message: Mapping[str, Any], answer_type: Any) -> Answer | None:
    """The answer that a follower's message holds; None for a message of another kind."""
    if "value" not in message:
        return None
    failure = FAILURE.validate_python(message["failure"])
    value = None
    if failure is None:
        value = TypeAdapter(answer_type).validate_python(message["value"])
    return Answer(
        number=message["call"],
        rank=message["rank"],
        outcome=Outcome(value=value, failure=failure),
        resources=RESOURCES.validate_python(message["resources"]),
    )
