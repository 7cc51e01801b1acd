"""Messages between the processes that torchrun has started, through the store that it gives them.

A line is an endless list of messages in that store: whoever is a member may append, and everybody
reads all of it, in one order. Nothing polls: the store keeps a reader waiting until there is more.
A store's client is a blocking call that no signal interrupts, so that a thread does the reading and
hands each message over through a pipe.
"""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from datetime import timedelta  # noqa: TID251 - a length of time, no clock
from itertools import count
from multiprocessing.connection import Connection, Pipe
from threading import Thread
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

FOREVER = timedelta(days=365)
JOINING = timedelta(minutes=5)
"""As long may the processes take to start one after the other."""


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
    """The store there, waited for while it is not up yet; a client of one's own for each thread."""
    store = TCPStore(
        address.host, address.port, is_master=False, wait_for_workers=False, timeout=JOINING
    )
    store.set_timeout(FOREVER)
    return PrefixStore(address.prefix, store)


@dataclass(frozen=True)
class Line:
    """One list of messages, of anything that can be pickled."""

    address: Address
    name: str

    def send(self, store: Store, message: Any) -> None:
        """Append to it, by this client."""
        number = store.add(f"{self.name}/count", 1)
        store.set(f"{self.name}/{number}", pickle.dumps(message))  # pyright: ignore[reportArgumentType] - its stub knows str only

    def reader(self) -> Connection:
        """A pipe that gives every message from the first on, and its end when the store is lost."""
        receiver, sender = Pipe(duplex=False)
        Thread(target=self._read, args=(sender,), daemon=True, name=self.name).start()
        return receiver

    def _read(self, sender: Connection) -> None:
        with contextlib.suppress(RuntimeError, OSError), sender:
            store = client(self.address)
            for number in count(1):
                sender.send_bytes(store.get(f"{self.name}/{number}"))
