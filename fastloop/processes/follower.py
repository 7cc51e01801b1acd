"""Processes of ranks above 0 under torchrun, which silently execute the commands of rank 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from fastloop.core.protocols import RankTask
from fastloop.core.types import JobFailed, SignalExit
from fastloop.processes.child import Child, Outcome
from fastloop.processes.leader import ANSWERS, COMMANDS, join_message
from fastloop.processes.rank_children import (
    RankWork,
    answer_to_json,
    locate_child,
    rank_calls,
    start_children,
    work_from_json,
)
from fastloop.processes.rendezvous import JOIN_TIMEOUT_S, STOP, Mailbox, connect
from fastloop.processes.torchrun_env import TorchrunProcess
from fastloop.processes.wait_for_children import Answer, EndOfMessages, Monitor

MakeTask = Callable[[Mapping[str, Any]], RankTask]


def run_follower(
    process: TorchrunProcess, identity: Mapping[str, str], make_task: MakeTask
) -> bool:
    """Execute rank 0's commands; True once it dismisses this process, False if it is lost.

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
                # A message about a call that has already ended in this process.
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


def _name_left_running(children: Sequence[Child]) -> None:
    """Name the commands that trials of this node left running; rank 0 has had their answers by
    then.
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
    number, task = message["call"], make_task(message["command"])
    work = work_from_json(message, task)
    children: list[Child] = []
    following = None
    try:
        with start_children(rank_calls(process, work, number), work) as children:
            # A command that arrives while this call is being answered is executed next.
            following = _post_answers(children, work, number, answers, inbox)
    except JobFailed as error:
        # This node starts no further process.
        outcome = Outcome(failure=error.failure)
        answer = Answer(number=number, rank=process.rank, outcome=outcome)
        answers.post(answer_to_json(answer, task.answer_type))
    _name_left_running(children)
    return following or inbox.recv()


def _post_answers(
    children: list[Child], work: RankWork, number: int, answers: Mailbox, inbox: Connection
) -> Any:
    """Post the children's answers; returns a message about another call that came meanwhile."""
    monitor, failed = Monitor(children, observed=work.observed), False
    # After a failure, the children stay until rank 0 ends the call: their exit would make others
    # fail.
    while monitor.pending or failed:
        event = monitor.next([inbox])
        if isinstance(event, Answer):
            failed = failed or bool(event.outcome.failure)
            answers.post(answer_to_json(event, work.task.answer_type))
        elif event == {"locate": number}:
            for child in monitor.pending:
                answers.post({"call": number, **asdict(locate_child(child))})
        else:
            return inbox.recv() if event == {"end": number} else event
    return None
