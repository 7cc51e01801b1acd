"""By which of their addresses nodes reach each other, whatever their names resolve to."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

ROUTE_S = 60.0
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Route:
    """The addresses at both ends of a way to another node."""

    own: str
    theirs: str


def route_to(host: str, port: int) -> Route | None:
    """The way to who listens there; None where that is this node itself, by an address that other
    nodes have too. Raises OSError."""
    with socket.create_connection((host, port), ROUTE_S) as way:
        found = Route(way.getsockname()[0], way.getpeername()[0])
    return None if ipaddress.ip_address(found.own).is_loopback else found


def name_the_interface(store: Store, first: tuple[str, int], rank: int, world_size: int) -> None:
    """Let gloo connect nodes by the interface that leads to the first one, unless the user names
    another; on the first node by that to which the others come, as they tell in the store.

    Its own choice is what the node's name resolves to, on many machines the loopback address.
    """
    way = route_to(*first)
    store.set(f"first/{rank}", way.theirs if way else "")
    told = (store.get(f"first/{other}").decode() for other in range(world_size))
    own = way.own if way else next(filter(None, told), "")
    for name, addresses in psutil.net_if_addrs().items():
        if own in [one.address for one in addresses]:
            os.environ.setdefault(GLOO_INTERFACE, name)
