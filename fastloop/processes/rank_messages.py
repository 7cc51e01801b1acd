"""The messages between rank 0 and its followers, the other ranks that torchrun has started, and
their conversion to and from JSON.

A follower joins with `join_message`. Rank 0 starts a call with `work_to_json`. Rank 0 may then ask
for the positions of the ranks that have not answered (`locate_message`), and end the call before
all ranks have answered (`end_message`). A follower sends answers (`answer_to_json`) and positions
(`position_to_json`). Each message about a call contains the call's number, because the message may
arrive after the call has ended.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fastloop.core.launcher import RankTask
from fastloop.core.result import Resources
from fastloop.core.types import Failure
from fastloop.processes.answer_receiver import Answer
from fastloop.processes.child_process import Outcome
from fastloop.processes.rank_children import RankPosition, RankWork

FAILURE = TypeAdapter(Failure | None)
RESOURCES = TypeAdapter(Resources | None)


def join_message(rank: int, identity: Mapping[str, str], error: str = "") -> dict[str, Any]:
    """The first message of a follower.

    error: the reason why the follower could not compose the jobs; empty if it has composed them.
    """
    return {"rank": rank, "host": platform.node(), "identity": identity, "error": error}


def work_to_json(work: RankWork, number: int) -> dict[str, Any]:
    """The message with which rank 0 starts the call of this number in its followers."""
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
    """The work of a follower that received this message of rank 0.

    task: the task that the message's command describes.
    """
    settings = {name: message[name] for name in ("isolation", "backend", "timeout_s", "observed")}
    environment = Path(message["environment"]) if message["environment"] else None
    return RankWork(task=task, ranks=1, environment=environment, **settings)


def locate_message(number: int) -> dict[str, Any]:
    """The message with which rank 0 asks for the positions of ranks that have not answered."""
    return {"locate": number}


def end_message(number: int) -> dict[str, Any]:
    """The message with which rank 0 ends the call of this number in its followers."""
    return {"end": number}


def answer_to_json(answer: Answer, answer_type: Any) -> dict[str, Any]:
    """The message with which a follower sends an answer to rank 0.

    answer_type: type of the answer's value, by which pydantic converts the value.
    """
    return {
        "call": answer.number,
        "rank": answer.rank,
        "value": TypeAdapter(answer_type).dump_python(answer.outcome.value, mode="json"),
        "failure": FAILURE.dump_python(answer.outcome.failure, mode="json"),
        "resources": RESOURCES.dump_python(answer.resources, mode="json"),
    }


def answer_from_json(message: Mapping[str, Any], answer_type: Any) -> Answer | None:
    """The answer that a follower's message contains; None for a message of another kind."""
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


def position_to_json(position: RankPosition, number: int) -> dict[str, Any]:
    """The message with which a follower tells rank 0 the position of a rank during a call."""
    return {"call": number, **asdict(position)}


def position_from_json(message: Mapping[str, Any]) -> RankPosition:
    """The position of the rank that sent this message about a call.

    The message is an answer instead of a position if the rank answered after rank 0 had asked.
    """
    return RankPosition(
        rank=message["rank"],
        location=message.get("location", "has answered since"),
        stack=message.get("stack", ""),
    )
