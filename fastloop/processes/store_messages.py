"""Send messages between the processes that torchrun starts: JSON under numbered keys of torch's
store.

torchrun hosts the store; without it, the launcher does (`host_store`). No message is unpickled or
executed: a command names a job and a trial, an answer holds numbers.
"""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta  # noqa: TID251 - a length of time, not a clock
from multiprocessing.connection import Connection, Pipe
from threading import Thread
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from fastloop.core.spans import now_ns, pause, seconds_between
from fastloop.processes.torchrun_env import StoreAddress

JOIN_TIMEOUT_S = 300.0
"""Time for processes on other nodes to start."""
HANDSHAKE_S = 10.0
"""Time for a listening process to answer, and to complete the handshake of a torch store."""
READER_END_S = 10.0
"""Time for the thread that reads a mailbox to end after STOP."""
RETRY_S = 0.2
"""Pause between two attempts to connect."""
LOOPBACK = "127.0.0.1"
FOREVER = timedelta(days=30)
"""Time for which a client waits for the store, and for a message."""
STOP = "stop"
"""Message that ends the reader of a mailbox."""


def host_store() -> TCPStore:
    """A store on the loopback interface; it is closed when the object is deleted."""
    # The system chooses a free port, and the socket is handed over: nobody can take it in between.
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    timeout = timedelta(seconds=HANDSHAKE_S)
    return TCPStore(
        LOOPBACK,
        port,
        world_size=None,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def connect(address: StoreAddress, within_s: float) -> Store:
    """A client of the store at that address.

    Retries for `within_s` seconds, and may take twice HANDSHAKE_S longer if a process listens but
    does not answer. Raises ConnectionError if nothing listens there, or no torch store.
    """
    start_ns = now_ns()
    # torch's own retries can't be interrupted by a signal.
    while reason := _refusal(address):
        if seconds_between(start_ns, now_ns()) > within_s:
            raise ConnectionError(f"{address}: {reason}; gave up after {within_s:g} s")
        pause(RETRY_S)
    try:
        return PrefixStore(address.prefix, _client(address).result(min(within_s, HANDSHAKE_S)))
    except (RuntimeError, TimeoutError) as error:
        raise ConnectionError(f"{address}: the listening process is not a torch store") from error


def _client(address: StoreAddress) -> Future[Store]:
    """Connect in a daemon thread that can be abandoned.

    If the listening process is not a torch store, torch waits for its answer forever, and ignores
    signals.
    """
    client: Future[Store] = Future()

    def handshake() -> None:
        try:
            client.set_result(
                TCPStore(
                    address.host,
                    address.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=FOREVER,
                )
            )
        except Exception as error:
            client.set_exception(error)

    Thread(target=handshake, daemon=True).start()
    return client


def _refusal(address: StoreAddress) -> str:
    """Error of connecting to that address; empty if something listens there."""
    try:
        socket.create_connection((address.host, address.port), HANDSHAKE_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@dataclass(frozen=True)
class Mailbox:
    """A queue of JSON messages, to which any number of processes can post."""

    store: Store
    name: str
    """Prefix of the keys of its messages."""

    def post(self, message: Any) -> None:
        """Append a message; has no effect if the store is lost."""
        with contextlib.suppress(RuntimeError):
            number = self.store.add(f"{self.name}/count", 1)
            self.store.set(f"{self.name}/{number}", json.dumps(message))

    def read(self) -> Connection:
        """Start forwarding all messages, from the first on, to a pipe; return its receiving end.

        A thread reads the store, because a process that waits for a store can't handle signals. The
        pipe is closed after STOP, or when the store is lost.
        """
        receiver, sender = Pipe(duplex=False)
        Thread(target=self._forward, args=(sender,), daemon=True).start()
        return receiver

    @staticmethod
    def await_end(inbox: Connection) -> None:
        """Wait until the thread that forwards to this pipe has ended, after STOP was posted.

        A thread that returns from torch's C++ code while the interpreter shuts down would abort the
        process.
        """
        with contextlib.suppress(EOFError, OSError):
            while inbox.poll(READER_END_S):
                inbox.recv()

    def _forward(self, sender: Connection) -> None:
        """Send all messages of the store to the pipe, until STOP or the end of the store."""
        number = 0
        message = None
        with sender, contextlib.suppress(RuntimeError, OSError):
            while message != STOP:
                number += 1
                message = json.loads(self.store.get(f"{self.name}/{number}"))
                sender.send(message)
