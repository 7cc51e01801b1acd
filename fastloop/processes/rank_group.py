"""Join the ranks of a trial, processes that load and train together, in one torch.distributed
group.

Without a group, the functions of this module describe a single process: rank 0 of 1.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta  # noqa: TID251 - a duration, not a clock
from typing import Literal, TypeVar

import psutil
import torch
from pydantic import TypeAdapter, ValidationError
from torch import distributed, nn
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from fastloop.core.types import Unsupported
from fastloop.processes.store_messages import LOOPBACK

T = TypeVar("T")
Backend = Literal["auto", "nccl", "gloo"]
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
ROUTE_TIMEOUT_S = 60.0
"""Time to connect to the node of the store, which shows the route to it."""
GLOO_INTERFACE, NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""Variables that name the network interface of gloo, and that of NCCL."""


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The place of a process in a group that is to be formed, and the way to join it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    """Host of the store through which the ranks find each other."""
    port: int
    prefix: str
    """Prefix of the group's keys in the store, so that no group reads keys of an earlier one."""
    backend: Backend
    timeout_s: float
    """Time that a rank waits for the others in a collective before it raises."""


@contextmanager
def join_group(spec: RankSpec) -> Iterator[None]:
    """Join the group as the given rank, with the environment variables that torchrun would set.

    After an exception the group is not destroyed: that would make the other ranks fail too, with
    misleading errors.
    """
    os.environ.update(
        RANK=str(spec.rank),
        WORLD_SIZE=str(spec.world_size),
        LOCAL_RANK=str(spec.local_rank),
        LOCAL_WORLD_SIZE=str(spec.local_world_size),
        MASTER_ADDR=spec.host,
        MASTER_PORT=str(spec.port),
    )
    timeout = timedelta(seconds=spec.timeout_s)
    store = TCPStore(spec.host, spec.port, is_master=False, wait_for_workers=False, timeout=timeout)
    store = PrefixStore(spec.prefix, store)
    # Ranks of several nodes need an interface that the other nodes reach, ranks of one node only
    # loopback.
    if spec.world_size > spec.local_world_size:
        _set_gloo_interface(store, spec)
    else:
        _stay_on_loopback()
    distributed.init_process_group(
        _backend_names(spec.backend),
        store=store,
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=timeout,
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(device_index())
    yield
    # A rank that leaves early would make the collectives of the others fail.
    barrier()
    distributed.destroy_process_group()


def in_group() -> bool:
    """True if this process belongs to a group, even to a group of a single rank."""
    return distributed.is_initialized()


def rank() -> int:
    """Rank of this process; 0 without a group."""
    return distributed.get_rank() if in_group() else 0


def world_size() -> int:
    """Number of ranks; 1 without a group."""
    return distributed.get_world_size() if in_group() else 1


def local_rank() -> int:
    """Rank of this process on its node; 0 without a group."""
    return int(os.environ[LOCAL_RANK]) if in_group() else 0


def local_world_size() -> int:
    """Number of ranks on this node; 1 without a group."""
    return int(os.environ[LOCAL_WORLD_SIZE]) if in_group() else 1


def device_index() -> int:
    """Index of this rank's CUDA device on its node; with gloo several ranks may share one."""
    return local_rank() % max(1, torch.cuda.device_count())


def resolve_device(name: str) -> torch.device:
    """The torch device of that name; "auto" is one accelerator for each rank, or the CPU.

    Raises Unsupported if this machine has no such device, and ValueError for any other name.
    """
    if name == "auto":
        # is_available comes first: a CUDA build names its accelerator even on a machine without
        # one.
        accelerator = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        if accelerator is None:
            return torch.device("cpu")
        return torch.device(accelerator.type, device_index())
    try:
        device = torch.device(name)
    except RuntimeError:
        allowed = "allowed are auto, cpu, mps, cuda and cuda:<number>"
        raise ValueError(f"device={name}: {allowed}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Unsupported(
            f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    if device.type == "cuda" and device.index is None:
        # The current device differs between threads.
        device = torch.device("cuda", device_index())
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise Unsupported(f"device={name}: this machine has no MPS device")
    return device


def barrier() -> None:
    """Wait until every rank has called this function."""
    # If the group has both NCCL and gloo, distributed.barrier() launches a kernel on a device that
    # it guesses. all_reduce() of a tensor on the CPU does not.
    if world_size() > 1:
        distributed.all_reduce(torch.zeros(1))


def all_gather(value: T, kind: type[T]) -> list[T]:
    """The values of all ranks, by rank.

    The values are exchanged as JSON and checked: torch's all_gather_object would unpickle, and so
    execute, the bytes that other ranks send. kind: type of the value; a number, a string, a
    dataclass, or a collection of these. Raises ValueError if a rank sends a value of another type.
    """
    if world_size() == 1:
        return [value]
    adapter = TypeAdapter(kind)
    own = torch.frombuffer(bytearray(adapter.dump_json(value)), dtype=torch.uint8)
    lengths = _gather_tensors(torch.tensor([len(own)]))
    longest = max(int(length) for length in lengths)
    padded = _gather_tensors(nn.functional.pad(own, (0, longest - len(own))))
    values: list[T] = []
    for number, (message, length) in enumerate(zip(padded, lengths, strict=True)):
        try:
            values.append(adapter.validate_json(message[: int(length)].numpy().tobytes()))
        except ValidationError:
            raise ValueError(f"rank {number} sent no value of the kind {kind}") from None
    return values


def _gather_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, by rank; they have equal shapes."""
    tensors = [torch.empty_like(tensor) for _ in range(world_size())]
    distributed.all_gather(tensors, tensor)
    return tensors


def _backend_names(backend: Backend) -> str:
    """The backend as init_process_group expects it; gloo always gathers values on the host."""
    if backend == "gloo" or not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def _set_gloo_interface(store: Store, spec: RankSpec) -> None:
    """Set the network interface through which gloo connects nodes, unless the user has set one.

    A node uses the interface that routes to the store's node. The store's node itself uses the
    interface to which the other nodes connect. By default gloo takes the address that the host name
    resolves to, which is loopback on many machines.
    """
    local, remote = _route_to(spec.host, spec.port)
    store.set(f"remote/{spec.rank}", remote)
    remotes = (store.get(f"remote/{other}").decode() for other in range(spec.world_size))
    local = local or next(filter(None, remotes), "")
    _set_interface(local, GLOO_INTERFACE)


def _stay_on_loopback() -> None:
    """Make the ranks of a single node listen on its loopback interface only, unless the user has
    set another one.

    By default they listen on the address that the host name resolves to, and anybody can connect.
    """
    _set_interface(LOOPBACK, GLOO_INTERFACE, NCCL_INTERFACE)


def _set_interface(address: str, *variables: str) -> None:
    """Set the environment variables to the interface with that address, unless they are set."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in [each.address for each in addresses]:
            for variable in variables:
                os.environ.setdefault(variable, name)


def _route_to(host: str, port: int) -> tuple[str, str]:
    """Local and remote address of a connection to that port; both empty if it is on this node.

    Raises OSError.
    """
    with socket.create_connection((host, port), ROUTE_TIMEOUT_S) as connection:
        local, remote = connection.getsockname()[0], connection.getpeername()[0]
    return ("", "") if ipaddress.ip_address(local).is_loopback else (local, remote)
