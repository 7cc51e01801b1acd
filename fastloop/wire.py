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
from dataclasses import dataclass, field
from datetime import timedelta  # noqa: TID251 - a length of time, no clock
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from fastloop.ranks import route_to

JOINING_S = 300
"""As long may the processes take to start one after the other."""
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


def hosted(address: Address) -> TCPStore:
    """A store that lives as long as this object; port 0 lets the system choose one."""
    return TCPStore(address.host, address.port, is_master=True, wait_for_workers=False)


def client(address: Address) -> Store:
    """The store there, waited for while it is not up yet. Raises RuntimeError."""
    joining = timedelta(seconds=JOINING_S)
    store = TCPStore(
        address.host, address.port, is_master=False, wait_for_workers=False, timeout=joining
    )
    return PrefixStore(address.prefix, store)


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
    host, port = route_to(address.host, address.port) or address.host, found.server.getsockname()[1]
    _tell(store, pickle.dumps((host, port, found.secret)))
    return found


def tell_over(store: Store) -> None:
    """Say in the store that nobody listens any more, to whoever comes too late."""
    with contextlib.suppress(RuntimeError):  # it may be gone, and they with it
        _tell(store, OVER)


def is_over(store: Store) -> bool:
    """Whether the first has said so; False also where the store is gone."""
    try:
        return store.get(LEADER) == OVER
    except RuntimeError:
        return False


def connected(store: Store) -> Connection:
    """The connection to the first. Raises OSError, also where it has said that it is over."""
    try:
        told = store.get(LEADER)
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
