"""What the first of the processes that start ranks has to do with the others: it leads them."""

from __future__ import annotations

import atexit
import contextlib
import platform
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import torch

from fastloop.environment import code_version
from fastloop.spans import now_ns, seconds_between
from fastloop.types import JobFailed
from fastloop.watch import LineIsDead, TimeIsOver, Watch
from fastloop.wire import HERE_S, JOINING_S, Address, client, hosted, listening, tell_over

GRACE_S = 5.0
"""Ranks that lose a fellow in a collective fail too: as long may the one that was first take to
tell why, and all of them, where they are, and to end."""


def _versions() -> tuple[str, ...]:
    """What must be the same for all: a call is told by its name, and by pickles."""
    return f"torch {torch.__version__}", f"fastloop {code_version()[:8]}"


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What a follower tells of itself, before anything is asked of it."""

    number: int
    host: str = field(default_factory=platform.node)
    versions: tuple[str, ...] = field(default_factory=_versions)


class Lead:
    """The leader of so many processes, itself counted, until it ends.

    hosts: the store at that address is its own to open. Raises ConnectionError where that can't be,
    or nobody listens there.
    """

    def __init__(self, address: Address, hosts: bool, size: int) -> None:
        self.numbers = count(1)
        self._size = size
        self._server = hosted(address) if hosts else None  # lives as long
        self._store = client(address, HERE_S if hosts else JOINING_S)
        self._listener = listening(self._store, address)
        self._since_ns = now_ns()
        self._followers: dict[Connection, Greeting] = {}
        self._lost = ""

    @property
    def lines(self) -> list[Connection]:
        """One to each follower."""
        return list(self._followers)

    def assemble(self) -> None:
        """Return when all followers have come. Raises JobFailed where one does not, or has gone."""
        self._gather(JOINING_S - seconds_between(self._since_ns, now_ns()))
        if self._lost:
            raise JobFailed(self._lost)
        here = {greeting.number for greeting in self._followers.values()}
        if missing := set(range(1, self._size)) - here:
            who = ", ".join(map(str, sorted(missing)))
            told = f"process {who} of {self._size} has not come within {JOINING_S:g} s"
            raise JobFailed(f"ConnectionError: {told}")
        for one in self._followers.values():
            if one.versions != _versions():
                told = f"{one.host} has {', '.join(one.versions)}, this {', '.join(_versions())}"
                raise JobFailed(f"RuntimeError: nodes differ: {told}")

    def _gather(self, within_s: float) -> None:
        start_ns = now_ns()
        while len(self._followers) + 1 < self._size and not self._lost:
            left_s = within_s - seconds_between(start_ns, now_ns())
            if line := self._listener.accept(left_s):
                with contextlib.suppress(EOFError, OSError):
                    self._followers[line] = line.recv()
            elif left_s <= 0:
                return

    def order(self, order: Any | None) -> None:
        """Give an order to all; None: it is over. Whoever is gone is past obeying."""
        for line in self.lines:
            with contextlib.suppress(OSError):
                line.send(order)

    def lose(self, line: Connection) -> JobFailed:
        """Why nothing can be done any more, now that this line is dead."""
        gone = self._followers.pop(line)
        what = f"process {gone.number} of {self._size}, on {gone.host}"
        self._lost = self._lost or f"ConnectionError: {what}, has ended or can't be reached"
        return JobFailed(self._lost)

    def end(self) -> None:
        """Tell all that it is over, and wait a little until they have gone."""
        tell_over(self._store)
        self._gather(GRACE_S if self._server else 0)  # its store is gone with it
        self.order(None)
        watch = Watch([], GRACE_S)
        with contextlib.suppress(TimeIsOver):
            while self._followers:
                try:
                    watch.next(self.lines)
                except LineIsDead as dead:
                    self._followers.pop(dead.line)


@cache
def lead(address: Address, hosts: bool, size: int) -> Lead:
    """The lead over those that come there, until this process ends, however orderly."""
    found = Lead(address, hosts, size)
    atexit.register(found.end)
    return found
