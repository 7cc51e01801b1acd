"""One call done by every rank at once: by children of this process, and of those that follow it.

torchrun starts as many processes of fastloop as there are ranks. The first leads: it alone reads
the command line, prepares, keeps results and speaks. The others follow its orders (wire.py). For
each call everybody starts a fresh process a rank; these form a group of their own, as keys with a
prefix of their own in torchrun's own store, so that no group meets what an earlier one, perhaps
killed, has left there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from fastloop.child import Call, Child, Isolation, Outcome, started
from fastloop.lead import GRACE_S, Greeting, Lead, lead
from fastloop.ranks import Backend, Seat
from fastloop.types import JobFailed
from fastloop.watch import Answer, LineIsDead, TimeIsOver, Watch
from fastloop.wire import Address, client, connected, hosted, is_over

LOST = re.compile(r"gloo|Connection|NCCL|Dist\w+Error|killed by SIGABRT")
"""In a reason that is the consequence of another rank's; NCCL's watchdog aborts its process."""
NEVER_S = 2_000_000.0
ALONE = 0
"""The number of a call by one process."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the processes that start ranks; the default is alone, and the leader."""

    number: int = 0
    """0 leads."""
    size: int = 1
    """How many there are."""
    local_number: int = 0
    """The same, on this node."""
    local_size: int = 1
    address: Address | None = None
    """Of the store that all of them share; None without others."""
    hosts: bool = False
    """Whether that store is the leader's to open."""


def not_told() -> list[str]:
    """What torchrun tells the processes that it starts, and nobody has told this one."""
    needed = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return [name for name in needed if name not in os.environ]


def of_torchrun() -> Member | None:
    """What this process is under torchrun; None without it, or where it has started one only."""
    env = os.environ
    size = int(env.get("WORLD_SIZE") or 1)
    if size == 1 or not_told():
        return None
    attempt = f"{env.get('TORCHELASTIC_RUN_ID', '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return Member(
        number=int(env["RANK"]),
        size=size,
        local_number=int(env["LOCAL_RANK"]),
        local_size=int(env["LOCAL_WORLD_SIZE"]),
        address=Address(
            host=env["MASTER_ADDR"],
            port=int(env["MASTER_PORT"]),
            prefix=f"fastloop/{attempt}",
            setting="MASTER_ADDR:MASTER_PORT",
        ),
        hosts=env.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """A call, by how many ranks and how."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    isolation: Isolation
    observed: bool
    ranks: int
    """Of each member."""
    backend: Backend | None
    """None: no group, of one rank."""
    timeout_s: float | None


@dataclass(frozen=True, kw_only=True)
class Order:
    """What every member is to do: start its ranks, or end those of that call."""

    number: int
    work: Work | None = None
    tell: bool = False
    """Before the end: where the ranks are."""


def answers_of(member: Member, work: Work) -> list[Answer]:
    """Every rank's answer, by rank. Raises JobFailed as soon as one of them fails."""
    if work.backend is None:
        return _collected([Call(function=work.function, args=work.args)], work, None)
    if member.address is None:
        server = hosted(Address(host="127.0.0.1", port=0))
        address = Address(host="127.0.0.1", port=server.port)
        number = ALONE if work.ranks == 1 else 1
        return _collected(_calls(replace(member, address=address), work, number), work, None)
    leading = lead(member.address, member.hosts, member.size)
    leading.assemble()
    number = next(leading.numbers)
    leading.order(Order(number=number, work=work))
    try:
        return _collected(_calls(member, work, number), work, leading)
    except BaseException:
        leading.order(Order(number=number))
        raise


def follow(member: Member) -> bool:
    """Obey the leader until it says that it is over; False where it is gone without a word.

    Raises ConnectionError where nobody has come to that address.
    """
    assert member.address is not None
    store = client(member.address)
    try:
        with connected(store) as line:
            line.send(Greeting(number=member.number))
            while order := line.recv():
                if order.work and not _obey(order, member, line):
                    break
    except (EOFError, OSError, LineIsDead):
        return is_over(store)
    return True


def _obey(order: Order, member: Member, line: Connection) -> bool:
    """Do that work until it is done or to be ended; False: all is over."""
    assert order.work is not None
    with _started(_calls(member, order.work, order.number), order.work) as children:
        watch, failed = Watch(children, observed=order.work.observed), False
        while watch.working or failed:  # who has failed is held, or its fellows would fail too
            heard = watch.next([line])
            if isinstance(heard, Answer):
                failed = failed or bool(heard.outcome.reason)
                line.send(heard)
            elif heard is None:
                return False
            elif heard.number == order.number:
                for child in watch.working if heard.tell else []:
                    line.send(_whereabouts(child))
                break
    return True


def _collected(calls: list[Call], work: Work, leading: Lead | None) -> list[Answer]:
    lines, number = leading.lines if leading else [], calls[0].number
    world_size = calls[0].seat.world_size if calls[0].seat else 1
    found: dict[int, Answer] = {}
    with _started(calls, work) as children:
        watch = Watch(children, work.timeout_s, work.observed)
        try:
            while len(found) < world_size:
                answer = watch.next(lines)
                if answer.number == number:  # others had still to say something to an earlier call
                    found[answer.rank] = answer
                    _look_at(found, watch)
        except LineIsDead as dead:
            assert leading is not None
            raise leading.lose(dead.line) from None
        except TimeIsOver:
            if any(one.outcome.reason for one in found.values()):
                raise _failure(found) from None
            missing = set(range(world_size)) - set(found)
            raise _timeout(work, _whereabouts_of(missing, watch, number, leading)) from None
        if any(one.outcome.reason for one in found.values()):
            raise _failure(found)
    return [found[rank] for rank in range(world_size)]


def _look_at(found: dict[int, Answer], watch: Watch) -> None:
    """Raise JobFailed for a failure that has its cause in itself; wait no longer after another."""
    reasons = [one.outcome.reason for one in found.values() if one.outcome.reason]
    if any(not LOST.search(reason) for reason in reasons):
        raise _failure(found)
    if len(reasons) == 1:
        watch.hurry(GRACE_S)


def _failure(found: dict[int, Answer]) -> JobFailed:
    failed = [one for one in found.values() if one.outcome.reason]
    first = min(failed, key=lambda one: bool(LOST.search(one.outcome.reason)))
    reason, details = first.outcome.reason, first.outcome.details
    if first.number == ALONE:
        return JobFailed(reason, details)
    verdict = reason.startswith(("unsupported", "invalid"))  # which every rank comes to
    told = "" if verdict else f" (rank {first.rank})"
    return JobFailed(reason + told, f"rank {first.rank}:\n{details}" if details else "")


def _timeout(work: Work, told: list[Answer]) -> JobFailed:
    reason = f"timeout: no result after {work.timeout_s:g} s"
    if not told[0].number:  # of one process alone
        return JobFailed(f"{reason}: {told[0].outcome.reason}", told[0].outcome.details)
    places = [f"rank {one.rank} {one.outcome.reason or 'is done by now'}" for one in told]
    stacks = [f"rank {one.rank}:\n{one.outcome.details}" for one in told if one.outcome.details]
    return JobFailed(f"{reason}: {', '.join(places)}", "\n".join(stacks))


def _whereabouts_of(
    ranks: set[int], watch: Watch, number: int, leading: Lead | None
) -> list[Answer]:
    """Where each of these ranks is, as far as it tells."""
    silent = Outcome(reason="does not tell where it is")
    found = {rank: Answer(number=number, rank=rank, outcome=silent) for rank in sorted(ranks)}
    asked = {one.rank: one for one in map(_whereabouts, watch.working)}
    watch = Watch([], GRACE_S)
    with contextlib.suppress(TimeIsOver, LineIsDead):
        if leading and len(asked) < len(found):
            leading.order(Order(number=number, tell=True))
            while len(asked) < len(found):
                heard = watch.next(leading.lines)
                asked |= {heard.rank: heard} if heard.number == number else {}
    return list((found | asked).values())


def _whereabouts(child: Child) -> Answer:
    """The innermost call that it is in, and its whole stack."""
    stack = child.stack()
    found = re.search(r'File ".*?([^/"]+)", line (\d+) in (\S+)', stack)
    place = f"in {found[3]} ({found[1]}:{found[2]})" if found else "does not tell where it is"
    outcome = Outcome(reason=place, details=stack)
    return Answer(number=child.call.number, rank=child.call.rank, outcome=outcome)


@contextmanager
def _started(calls: list[Call], work: Work) -> Iterator[list[Child]]:
    with ExitStack() as stack:
        yield [stack.enter_context(started(work.isolation, call)) for call in calls]


def _calls(member: Member, work: Work, number: int) -> list[Call]:
    """What this member's children are to do."""
    assert member.address is not None
    assert work.backend is not None
    seats = [
        Seat(
            rank=member.number * work.ranks + place,
            world_size=member.size * work.ranks,
            local_rank=member.local_number * work.ranks + place,
            local_world_size=member.local_size * work.ranks,
            host=member.address.host,
            port=member.address.port,
            prefix=f"{member.address.prefix}/call-{number}",
            backend=work.backend,
            timeout_s=work.timeout_s or NEVER_S,
        )
        for place in range(work.ranks)
    ]
    return [
        Call(function=work.function, args=work.args, number=number, seat=seat) for seat in seats
    ]
