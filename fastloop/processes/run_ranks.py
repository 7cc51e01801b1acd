"""Run one call in all ranks together, each rank in a fresh child process, and collect the answers.

torchrun starts one process of fastloop for each rank, and each of these processes composes the
jobs. The process of rank 0 leads: only it prepares data, keeps results and prints. The processes of
the other ranks, its followers, execute its commands. For each call, every process starts a fresh
child that takes its rank. The children form a new process group. The keys of this group in
torchrun's store have a new prefix, so that no group reads the keys of an earlier group, which may
have been killed.

Without torchrun, one process of fastloop starts the children of all ranks, and they meet in a store
of this process.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from fastloop.core.launcher import RankAnswer
from fastloop.core.types import Failure, FailureKind, JobFailed
from fastloop.processes.answer_receiver import (
    Answer,
    AnswerReceiver,
    AnswerTimeout,
    EndOfMessages,
)
from fastloop.processes.child_process import Call, Child
from fastloop.processes.rank_children import (
    RankPosition,
    RankWork,
    locate_child,
    rank_calls,
    start_children,
)
from fastloop.processes.rank_commands import STORE_ENDED, Followers
from fastloop.processes.rank_messages import (
    answer_from_json,
    end_message,
    locate_message,
    position_from_json,
    work_to_json,
)
from fastloop.processes.stall_watch import StallWatch
from fastloop.processes.store_messages import LOOPBACK, STOP, host_store
from fastloop.processes.torchrun_env import StoreAddress, TorchrunProcess

CONSEQUENCE = re.compile(r"gloo|Connection|NCCL|Dist\w+Error|killed by SIGABRT")
"""Pattern of the messages of ranks that failed because another rank failed. After such a failure,
NCCL's watchdog aborts its process by SIGABRT."""
GRACE_S = 5.0
"""Seconds to wait for the failure that has caused another one, and for the positions of ranks."""


def run_ranks(work: RankWork, followers: Followers | None = None) -> list[RankAnswer]:
    """Run the work in all ranks, and return their answers in the order of the ranks.

    followers: None if all ranks are children of this process. Raises JobFailed when a rank has
    failed, at most GRACE_S later; and after the time limit of the work.
    """
    if work.backend is None:
        call = Call(function=work.task.function, args=work.task.args)
        return _Collection(work, [call]).run()
    if followers is not None:
        return _run_with_followers(work, followers)
    # The ranks find each other by the store of this server, which lives as long as the variable.
    server = host_store()
    alone = TorchrunProcess(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        address=StoreAddress(host=LOOPBACK, port=server.port),
    )
    return _Collection(work, rank_calls(alone, work, 1)).run()


def _run_with_followers(work: RankWork, followers: Followers) -> list[RankAnswer]:
    """Run the work in the ranks of this process and of its followers, see `run_ranks`."""
    number = next(followers.numbers)
    followers.commands.post(work_to_json(work, number))
    try:
        return _Collection(work, rank_calls(followers.process, work, number), followers).run()
    except BaseException:
        # The followers' children would go on with a call that nobody waits for any more.
        followers.commands.post(end_message(number))
        raise


@dataclass
class _Collection:
    """The answers of all ranks to one call, as they arrive."""

    work: RankWork
    calls: list[Call]
    """The call, for each rank that is a child of this process."""
    followers: Followers | None = None
    """None: all ranks are children of this process."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Rank -> its answer, for the ranks that have answered."""

    @property
    def number(self) -> int:
        """Number of the call, which is equal in all ranks."""
        return self.calls[0].number

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        spec = self.calls[0].spec
        return spec.world_size if spec else 1

    def run(self) -> list[RankAnswer]:
        """Start the children, and return the answers of all ranks in order; raises JobFailed."""
        with start_children(self.calls, self.work) as children:
            watch = StallWatch(children, self._report_standstill)
            receiver = AnswerReceiver(children, self.work.timeout_s, self.work.observed, watch)
            try:
                while len(self.answers) < self.world_size:
                    self._receive(receiver)
            except EndOfMessages:
                message = f"ConnectionError: {STORE_ENDED}"
                raise JobFailed(Failure(kind=FailureKind.LOST, message=message)) from None
            except AnswerTimeout:
                if self.failures:
                    raise self._failure() from None
                raise self._timeout(receiver) from None
            if self.failures:
                raise self._failure()
        left_running = {child.call.rank: tuple(child.left_running) for child in children}
        return [
            RankAnswer(
                value=answer.outcome.value,
                resources=answer.resources,
                left_running=left_running.get(rank, ()),
            )
            for rank, answer in sorted(self.answers.items())
        ]

    def _receive(self, receiver: AnswerReceiver) -> None:
        """Wait for the next answer, and keep it.

        A failure that no other rank has caused raises JobFailed at once. If the message of a
        failure matches CONSEQUENCE, another rank seems to have caused it. The failure of that rank
        has to follow within GRACE_S.
        """
        event = receiver.receive([self.followers.inbox] if self.followers else [])
        # A signal has ended a follower.
        if event == STOP:
            raise EndOfMessages
        answer_type = self.work.task.answer_type
        answer = event if isinstance(event, Answer) else answer_from_json(event, answer_type)
        # The message is about an earlier call, which had ended before the message came.
        if answer is None or answer.number != self.number:
            return
        self.answers[answer.rank] = answer
        failures = self.failures
        # A failure that is not a consequence is the cause: nothing more is waited for.
        if any(not CONSEQUENCE.search(failure.message) for failure in failures.values()):
            raise self._failure()
        # The first consequence begins the wait for its cause; further ones do not prolong it.
        if len(failures) == 1:
            receiver.shorten(GRACE_S)

    @property
    def failures(self) -> dict[int, Failure]:
        """Rank -> its failure, for the ranks that have failed so far."""
        outcomes = {rank: answer.outcome for rank, answer in self.answers.items()}
        return {rank: each.failure for rank, each in outcomes.items() if each.failure}

    def _failure(self) -> JobFailed:
        """The failure that caused the others, with the number of its rank in the message."""
        failures = self.failures
        causes = [rank for rank, each in failures.items() if not CONSEQUENCE.search(each.message)]
        rank = (causes or [*failures])[0]
        failure = failures[rank]
        # Every rank reaches the same verdict by itself, so the number of one rank says nothing.
        if self.world_size == 1 or failure.kind.is_verdict:
            return JobFailed(failure)
        kind, details = failure.kind, failure.details
        if kind == FailureKind.ERROR and CONSEQUENCE.search(failure.message):
            kind = FailureKind.LOST
        message = f"{failure.message} (rank {rank})"
        details = f"rank {rank}:\n{details}" if details else ""
        return JobFailed(replace(failure, kind=kind, message=message, details=details))

    def _timeout(self, receiver: AnswerReceiver) -> JobFailed:
        """The failure of ranks that have not answered in time, with their positions in the code."""
        ranks = self._locate_missing(receiver)
        locations = ", ".join(f"rank {rank.rank} {rank.location}" for rank in ranks)
        details = "\n".join(f"rank {rank.rank}:\n{rank.stack}" for rank in ranks if rank.stack)
        if self.world_size == 1:
            locations, details = ranks[0].location, ranks[0].stack
        message = f"no result after {self.work.timeout_s:g} s: {locations}"
        return JobFailed(Failure(kind=FailureKind.TIMEOUT, message=message, details=details))

    def _report_standstill(self, child: Child, still_s: float, cpu_s: float) -> None:
        """Print that a rank does no work, and its position and its workers' in the code.

        still_s: seconds without any work. cpu_s: CPU seconds that were used in this time.
        """
        title = self.work.task.title or "this step"
        rank = f", rank {child.call.rank}" if self.world_size > 1 else ""
        timeout_s = self.work.timeout_s
        ending = f"; it is ended after {timeout_s:g} s (trial_timeout_s)" if timeout_s else ""
        location = locate_child(child).location
        tqdm.write(
            f"{title}{rank}: for {still_s:.0f} s its processes have used {cpu_s:.2f} s of CPU time "
            f"and read next to nothing: {location}{ending}",
            file=sys.stderr,
        )

    def _locate_missing(self, receiver: AnswerReceiver) -> list[RankPosition]:
        """The positions in the code of all ranks that have not answered, in order."""
        missing = sorted(set(range(self.world_size)) - self.answers.keys())
        located = {child.call.rank: locate_child(child) for child in receiver.pending}
        if self.followers:
            located |= self._ask_followers(self.followers, len(missing) - len(located))
        return [located.get(rank, RankPosition(rank=rank)) for rank in missing]

    def _ask_followers(self, followers: Followers, count: int) -> dict[int, RankPosition]:
        """Rank -> its position, for up to `count` ranks of followers that answer within GRACE_S."""
        located: dict[int, RankPosition] = {}
        if count < 1:
            return located
        # Only a follower can read the stacks of the children on its node.
        followers.commands.post(locate_message(self.number))
        receiver = AnswerReceiver([], GRACE_S)
        with contextlib.suppress(AnswerTimeout, EndOfMessages):
            while len(located) < count:
                message = receiver.receive([followers.inbox])
                if message == STOP or message.get("call") != self.number:
                    continue
                position = position_from_json(message)
                located[position.rank] = position
        return located
