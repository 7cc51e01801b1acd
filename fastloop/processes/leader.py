"""Rank 0 of the processes that torchrun has started: it commands the others."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch

from fastloop.core.files import fingerprint
from fastloop.core.machine import code_version
from fastloop.core.types import Failure, FailureKind, JobFailed
from fastloop.processes.rendezvous import JOIN_TIMEOUT_S, STOP, Mailbox, connect
from fastloop.processes.torchrun_env import TorchrunProcess
from fastloop.processes.wait_for_children import EndOfMessages, Monitor, MonitorTimeout

STORE_ENDED = "a rank has ended, or torchrun's store with its agent"
COMMANDS, ANSWERS = "commands", "answers"
"""Names of the mailboxes to which rank 0 and the followers post."""


@dataclass(frozen=True, kw_only=True)
class Followers:
    """Processes of ranks 1 to world_size - 1, commanded by this process."""

    process: TorchrunProcess
    commands: Mailbox
    answers: Mailbox
    inbox: Connection
    """Receives the messages of all followers."""
    numbers: count[int] = field(default_factory=lambda: count(1))
    """Numbers of the calls."""
    joined: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def assemble(self, identity: Mapping[str, str]) -> None:
        """Wait until all followers have joined with the same identity, see `identity_of`.

        Raises JobFailed if one does not join, reports an error, or has a different identity.
        """
        monitor, missing = Monitor([], JOIN_TIMEOUT_S), self._missing()
        try:
            while missing := self._missing():
                message = monitor.next([self.inbox])
                if message != STOP and "identity" in message:
                    self.joined[message["rank"]] = message
        except (MonitorTimeout, EndOfMessages) as event:
            ranks = ", ".join(map(str, sorted(missing)))
            # The store is gone, or some ranks are late: both name the ranks that are missing.
            ended = isinstance(event, EndOfMessages)
            reason = STORE_ENDED if ended else f"not within {JOIN_TIMEOUT_S:g} s"
            raise _lost(f"rank {ranks} did not join: {reason}") from None
        for rank, message in sorted(self.joined.items()):
            follower = f"rank {rank} on {message['host']}"
            if message["error"]:
                text = f"{follower}: {message['error']}"
                raise JobFailed(Failure(kind=FailureKind.ERROR, message=text))
            if message["identity"] != identity:
                raise JobFailed(
                    Failure(
                        kind=FailureKind.ERROR,
                        message=_difference(follower, message["identity"], identity),
                    )
                )

    def _missing(self) -> set[int]:
        return set(range(1, self.process.world_size)) - self.joined.keys()

    def dismiss(self) -> None:
        """Tell all followers to exit, and stop reading their answers."""
        self.commands.post(STOP)
        self.answers.post(STOP)
        Mailbox.await_end(self.inbox)


@cache
def followers_of(process: TorchrunProcess) -> Followers:
    """The followers of rank 0, with connections made at the first call.

    Raises ConnectionError if the store can't be reached.
    """
    address = process.address
    return Followers(
        process=process,
        commands=Mailbox(connect(address, JOIN_TIMEOUT_S), COMMANDS),
        answers=Mailbox(connect(address, JOIN_TIMEOUT_S), ANSWERS),
        # A connection of its own, as it is always blocked waiting for a key.
        inbox=Mailbox(connect(address, JOIN_TIMEOUT_S), ANSWERS).read(),
    )


def identity_of(config_hashes: Iterable[str]) -> dict[str, str]:
    """Versions of the code and a hash of the jobs, which have to be equal in all ranks.

    Commands name jobs by their index.
    """
    return {
        "torch": torch.__version__,
        "fastloop": code_version()[:8],
        "jobs": fingerprint(*config_hashes)[:8],
    }


def join_message(rank: int, identity: Mapping[str, str], error: str = "") -> dict[str, Any]:
    """The first message of a follower; error: why it has no jobs."""
    return {"rank": rank, "host": platform.node(), "identity": identity, "error": error}


def _difference(follower: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    if theirs["jobs"] != ours["jobs"]:
        return (
            f"RuntimeError: {follower} has composed different jobs: command lines or conf/ differ"
        )
    versions = [
        ", ".join(f"{name} {identity[name]}" for name in ("torch", "fastloop"))
        for identity in (theirs, ours)
    ]
    return f"RuntimeError: versions differ: {follower} has {versions[0]}, rank 0 has {versions[1]}"


def _lost(message: str) -> JobFailed:
    return JobFailed(Failure(kind=FailureKind.LOST, message=f"ConnectionError: {message}"))
