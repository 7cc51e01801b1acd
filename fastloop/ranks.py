"""The ranks of a trial: processes that load and step together, as one torch.distributed group.

Without a group everything here is that of one process alone: rank 0 of 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta  # noqa: TID251 - a length of time, no clock
from typing import Literal, TypeVar

import torch
from torch import distributed
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from fastloop.routes import name_the_interface

T = TypeVar("T")
Backend = Literal["auto", "nccl", "gloo"]
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One rank's place in a group that is yet to form."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    """Where the store listens through which the ranks find each other."""
    port: int
    prefix: str
    """Of the group's keys in that store: no group finds what another one has left."""
    backend: Backend
    timeout_s: float
    """A rank that waits so long for the others in a collective raises."""


@contextmanager
def seated(seat: Seat) -> Iterator[None]:
    """The process as this rank of the group, with the environment that torchrun would give it.

    After an exception the group is left as it is: whoever closes it makes the others fail too, and
    with a reason of their own.
    """
    os.environ.update(
        RANK=str(seat.rank),
        WORLD_SIZE=str(seat.world_size),
        LOCAL_RANK=str(seat.local_rank),
        LOCAL_WORLD_SIZE=str(seat.local_world_size),
        MASTER_ADDR=seat.host,
        MASTER_PORT=str(seat.port),
    )
    timeout = timedelta(seconds=seat.timeout_s)
    store = TCPStore(seat.host, seat.port, is_master=False, wait_for_workers=False, timeout=timeout)
    store = PrefixStore(seat.prefix, store)
    if seat.world_size > seat.local_world_size:
        name_the_interface(store, (seat.host, seat.port), seat.rank, seat.world_size)
    distributed.init_process_group(
        _backends(seat.backend),
        store=store,
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=timeout,
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(device_index())
    yield
    together()
    distributed.destroy_process_group()


def is_grouped() -> bool:
    """Whether this process is one of a group, if only of one."""
    return distributed.is_initialized()


def rank() -> int:
    """This process's number among the ranks."""
    return distributed.get_rank() if is_grouped() else 0


def world_size() -> int:
    """How many ranks there are."""
    return distributed.get_world_size() if is_grouped() else 1


def local_rank() -> int:
    """This process's number among the ranks of its node."""
    return int(os.environ[LOCAL_RANK]) if is_grouped() else 0


def device_index() -> int:
    """Which of the node's CUDA devices is this rank's; with gloo several may share one."""
    return local_rank() % max(1, torch.cuda.device_count())


def local_world_size() -> int:
    """How many ranks this node has."""
    return int(os.environ[LOCAL_WORLD_SIZE]) if is_grouped() else 1


def together() -> None:
    """Return when every rank has come here."""
    # Not barrier(): with NCCL beside gloo that one starts a kernel on a device it has to guess.
    if world_size() > 1:
        distributed.all_reduce(torch.zeros(1))


def gathered(value: T) -> list[T]:
    """What each rank has given, by rank."""
    if world_size() == 1:
        return [value]
    found: list[T] = [value] * world_size()
    distributed.all_gather_object(found, value)
    return found


def _backends(backend: Backend) -> str:
    """torch's own words; what is gathered on the host always goes by gloo."""
    if backend == "gloo" or not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"
