"""Connections between the processes that start ranks: each of the others has one to the first.

Where the first listens stands in the store that all of them know, torchrun's own or one that the
first hosts, and beside it a secret that a stranger does not have. A connection tells of its own
end: however a process ends, those at the other ends come to know, and nobody polls.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta  # noqa: TID251 - a length of time, no clock
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any, TypeVar

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from fastloop.routes import route_to
from fastloop.spans import now_ns, seconds_between

T = TypeVar("T")
JOINING_S = 300.0
"""As long may the processes take to start one after the other."""
HERE_S = 10.0
"""So long is a store waited for that this process has opened itself."""
RETRY_S = 0.2
GREETING_S = 5.0
SECRET_BYTES = 32
LEADER = "leader"
"""The key in the store under which the first says where it listens, or OVER."""
OVER = b"over"
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A node that has lost its power or its network is given up after about a minute."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a store listens, and what the keys of this command begin with there."""

    host: str
    port: int
    prefix: str = "fastloop"
    setting: str = "launcher.rdzv_endpoint"
    """Where the user has said so."""

    def __str__(self) -> str:
        return f"{self.setting}={self.host}:{self.port}"


def hosted(address: Address) -> TCPStore:
    """A store that lives as long as this object; port 0 lets the system choose one. Raises
    ConnectionError."""
    here = timedelta(seconds=HERE_S)
    try:  # it listens at all of this machine's addresses, and asks itself at that one
        return TCPStore("127.0.0.1", address.port, None, True, here, wait_for_workers=False)
    except RuntimeError as why:
        raise ConnectionError(f"{address}: something listens at that port already") from why


def client(address: Address, within_s: float = JOINING_S) -> Store:
    """The store there, waited for so long while it is not up yet. Raises ConnectionError."""
    start_ns = now_ns()
    while said := _silence(address):
        if seconds_between(start_ns, now_ns()) > within_s:
            raise ConnectionError(f"{address}: {said}; tried for {within_s:g} s")
        wait([], RETRY_S)
    try:
        return _patiently(lambda: _client(address), within_s)
    except (RuntimeError, TimeoutError) as why:
        raise ConnectionError(f"{address}: what listens there is no store of torch") from why


def _client(address: Address) -> Store:
    joining = timedelta(seconds=JOINING_S)
    store = TCPStore(
        address.host, address.port, is_master=False, wait_for_workers=False, timeout=joining
    )
    return PrefixStore(address.prefix, store)


def _silence(address: Address) -> str:
    """Why nobody answers there; empty where somebody does."""
    try:
        socket.create_connection((address.host, address.port), HERE_S).close()
    except OSError as why:
        return why.strerror or str(why)
    return ""


def _patiently(make: Callable[[], T], within_s: float) -> T:
    """make(), which no signal interrupts, by a thread of its own, so that waiting for it is
    interrupted. Raises TimeoutError."""
    found: Future[T] = Future()

    def work() -> None:
        try:
            found.set_result(make())
        except Exception as error:
            found.set_exception(error)

    Thread(target=work, daemon=True).start()
    return found.result(within_s)


@dataclass(frozen=True)
class Listener:
    """Where the first is found by the others."""

    server: socket.socket
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES))

    def accept(self, within_s: float) -> Connection | None:
        """The next of the others; None where nobody has come, or a stranger."""
        if not wait([self.server], max(0.0, within_s)):
            return None
        found = self.server.accept()[0]
        found.settimeout(GREETING_S)
        with contextlib.suppress(OSError):
            told = found.recv(SECRET_BYTES, socket.MSG_WAITALL)
            if secrets.compare_digest(told, self.secret):
                return _connection(found)
        found.close()
        return None


def listening(store: Store, address: Address) -> Listener:
    """A listener that the store tells of; whoever reaches the store reaches it."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    found = Listener(socket.create_server(("", 0), family=family, dualstack_ipv6=dual))
    way, port = route_to(address.host, address.port), found.server.getsockname()[1]
    host = way.own if way else address.host
    _tell(store, pickle.dumps((host, port, found.secret)))
    return found


def tell_over(store: Store) -> None:
    """Say in the store that nobody listens any more, to whoever comes too late."""
    with contextlib.suppress(RuntimeError):  # it may be gone, and they with it
        _tell(store, OVER)


def is_over(store: Store) -> bool:
    """Whether the first has said so; False also where the store is gone."""
    try:
        return store.check([LEADER]) and store.get(LEADER) == OVER
    except RuntimeError:
        return False


def connected(store: Store) -> Connection:
    """The connection to the first. Raises OSError, also where it has said that it is over."""
    try:
        told = _patiently(lambda: store.get(LEADER), JOINING_S)
    except RuntimeError as why:
        raise ConnectionError(str(why)) from why
    if told == OVER:
        raise ConnectionError("it is over")
    host, port, secret = pickle.loads(told)
    found = socket.create_connection((host, port), JOINING_S)
    found.sendall(secret)
    return _connection(found)


def _connection(found: socket.socket) -> Connection:
    found.settimeout(None)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # another system's names differ
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(found.detach())


def _tell(store: Store, value: Any) -> None:
    store.set(LEADER, value)  # its stub knows str only
