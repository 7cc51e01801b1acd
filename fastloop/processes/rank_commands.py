"""Send commands of rank 0 to the other ranks that torchrun has started.

Rank 0 leads: it alone prepares data, keeps results and prints. The processes of the other ranks,
its followers, silently execute its commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch

from fastloop.core.fingerprints import fingerprint
from fastloop.core.launcher import RankTask
from fastloop.core.source_fingerprint import code_version
from fastloop.core.types import Failure, FailureKind, JobFailed, SignalExit
from fastloop.processes.answer_receiver import (
    Answer,
    AnswerReceiver,
    AnswerTimeout,
    EndOfMessages,
)
from fastloop.processes.child_process import Child, Outcome
from fastloop.processes.rank_children import RankWork, locate_child, rank_calls, start_children
from fastloop.processes.rank_messages import (
    answer_to_json,
    end_message,
    join_message,
    locate_message,
    position_to_json,
    work_from_json,
)
from fastloop.processes.store_messages import JOIN_TIMEOUT_S, STOP, Mailbox, connect
from fastloop.processes.torchrun_env import TorchrunProcess

STORE_ENDED = "a rank has ended, or torchrun's store with its agent"
COMMANDS, ANSWERS = "commands", "answers"
"""Names of the mailboxes: rank 0 posts to the first, the followers post to the second."""

MakeTask = Callable[[Mapping[str, Any]], RankTask]
"""Returns the task that a command of rank 0 describes."""


@dataclass(frozen=True, kw_only=True)
class Followers:
    """Processes of ranks 1 to world_size - 1, commanded by this process."""

    process: TorchrunProcess
    commands: Mailbox
    answers: Mailbox
    inbox: Connection
    """Receives the messages of all followers."""
    numbers: count[int] = field(default_factory=lambda: count(1))
    """Yields the number of each new call, from 1 on."""
    joined: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """Rank -> its first message."""

    def assemble(self, identity: Mapping[str, str]) -> None:
        """Wait until all followers have joined with the same identity, see `identity_of`.

        Raises JobFailed if one does not join, reports an error, or has a different identity.
        """
        receiver = AnswerReceiver([], JOIN_TIMEOUT_S)
        missing = self._missing()
        try:
            while missing := self._missing():
                message = receiver.receive([self.inbox])
                if message != STOP and "identity" in message:
                    self.joined[message["rank"]] = message
        except (AnswerTimeout, EndOfMessages) as event:
            ranks = ", ".join(map(str, sorted(missing)))
            # The store is gone, or some ranks are late: either message names the missing ranks.
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
        # The inbox has a connection of its own, which always blocks, waiting for a key.
        inbox=Mailbox(connect(address, JOIN_TIMEOUT_S), ANSWERS).read(),
    )


def identity_of(config_hashes: Iterable[str]) -> dict[str, str]:
    """Versions of the code and a hash of the jobs, which have to be equal in all ranks.

    A command names a job by its index, so all ranks need the same list of jobs.
    """
    return {
        "torch": torch.__version__,
        "fastloop": code_version()[:8],
        "jobs": fingerprint(*config_hashes)[:8],
    }


def _difference(follower: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """The error of a follower that has other versions or other jobs than rank 0."""
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


def run_follower(
    process: TorchrunProcess, identity: Mapping[str, str], make_task: MakeTask
) -> bool:
    """Execute rank 0's commands until rank 0 dismisses this process (True), or is lost (False).

    identity: see `identity_of`. make_task: returns the task of a command, see trial/tasks.py.
    Raises ConnectionError if there is no store at the process's address.
    """
    answers = Mailbox(connect(process.address, JOIN_TIMEOUT_S), ANSWERS)
    inbox = Mailbox(connect(process.address, JOIN_TIMEOUT_S), COMMANDS).read()
    answers.post(join_message(process.rank, identity))
    try:
        command = inbox.recv()
        while command != STOP:
            if "command" in command:
                command = _execute(command, process, answers, inbox, make_task)
            else:
                # The message is about a call that has already ended in this process.
                command = inbox.recv()
    except (EOFError, OSError, EndOfMessages):
        return False
    except SignalExit:
        # Otherwise rank 0 would wait for this rank until the trial's timeout.
        answers.post(STOP)
        raise
    Mailbox.await_end(inbox)
    return True


def join_without_jobs(process: TorchrunProcess, error: str) -> None:
    """Report to rank 0 the error that keeps this process from joining. Raises ConnectionError."""
    answers = Mailbox(connect(process.address, JOIN_TIMEOUT_S), ANSWERS)
    answers.post(join_message(process.rank, {}, error))


def _print_left_running(children: Sequence[Child]) -> None:
    """Print the commands that this process's children have left running.

    Rank 0 can't print them: it has received the children's answers before these commands are known.
    """
    for child in children:
        for command in child.left_running:
            print(f"rank {child.call.rank} left running, ended: {command}", file=sys.stderr)


def _execute(
    message: Mapping[str, Any],
    process: TorchrunProcess,
    answers: Mailbox,
    inbox: Connection,
    make_task: MakeTask,
) -> Any:
    """Make the call of a command; return the first message that is about another call."""
    number = message["call"]
    task = make_task(message["command"])
    work = work_from_json(message, task)
    children: list[Child] = []
    following = None
    try:
        with start_children(rank_calls(process, work, number), work) as children:
            # A command that arrives while this call is being answered is executed next.
            following = _post_answers(children, work, number, answers, inbox)
    except JobFailed as error:
        # The system of this node could not start another process.
        outcome = Outcome(failure=error.failure)
        answer = Answer(number=number, rank=process.rank, outcome=outcome)
        answers.post(answer_to_json(answer, task.answer_type))
    _print_left_running(children)
    return following or inbox.recv()


def _post_answers(
    children: list[Child], work: RankWork, number: int, answers: Mailbox, inbox: Connection
) -> Any:
    """Post the children's answers; returns a message about another call that came meanwhile."""
    receiver = AnswerReceiver(children, observed=work.observed)
    failed = False
    # After a failure, the children stay until rank 0 ends the call: their exit would make others
    # fail.
    while receiver.pending or failed:
        event = receiver.receive([inbox])
        if isinstance(event, Answer):
            failed = failed or bool(event.outcome.failure)
            answers.post(answer_to_json(event, work.task.answer_type))
        elif event == locate_message(number):
            for child in receiver.pending:
                answers.post(position_to_json(locate_child(child), number))
        else:
            return inbox.recv() if event == end_message(number) else event
    return None
