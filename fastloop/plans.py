"""What loaders make of a plan: its indices, whole or batch by batch, and which settings they
honour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch.utils.data import Sampler

from fastloop.protocols import Order
from fastloop.torch_threads import made_on_one
from fastloop.types import Plan, Unsupported

ALWAYS = ("order", "seed", "batch_size", "drop_last", "device", "rank", "world_size")
"""Settings that every loader honours; where the step runs, and which rank it is, whose order is its
share already."""

DATALOADER = (
    *("num_workers", "pin_memory", "prefetch_factor", "persistent_workers"),
    "multiprocessing_context",
)
"""Settings of torch's DataLoader, whatever it loads."""


@runtime_checkable
class Choosy(Protocol):
    """A loader that has some of the settings only, and tells which before anything is prepared."""

    honours: tuple[str, ...]
    """Besides ALWAYS."""


@runtime_checkable
class Dealt(Protocol):
    """An order that depends on how many ranks it is dealt out to, index by index."""

    def dealt_to(self, world_size: int) -> Order:
        """The order of so many."""
        ...


@runtime_checkable
class Permuted(Protocol):
    """An order that is torch.randperm's of a generator with seed + epoch: a loader that does the
    same by itself need not be told."""

    is_randperm: ClassVar[Literal[True]]


def honours_only(loader: str, plan: Plan, *honoured: str) -> None:
    """Raise Unsupported where the plan sets what this loader would ignore."""
    for field in fields(plan):
        value = getattr(plan, field.name)
        if field.name not in (*ALWAYS, *honoured) and value != field.default:
            shown = type(value).__module__.rpartition(".")[2] if is_dataclass(value) else value
            shown = str(shown).lower() if isinstance(value, bool) else shown
            raise Unsupported(f"{field.name}={shown}: loader={loader} has no such setting")


def epoch_indices(order: Order, num_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """All int64 indices of an epoch, in one tensor."""
    pieces = list(made_on_one(order.pieces(num_samples, seed, epoch)))
    return torch.cat(pieces) if len(pieces) != 1 else pieces[0]


def index_batches(plan: Plan, num_samples: int, epoch: int) -> Iterator[torch.Tensor]:
    """The int64 indices of each batch; memory does not grow beyond a piece of the order."""
    left = torch.empty(0, dtype=torch.int64)
    for piece in made_on_one(plan.order.pieces(num_samples, plan.seed, epoch)):
        joined = torch.cat([left, piece]) if len(left) else piece
        whole = len(joined) - len(joined) % plan.batch_size
        if whole:
            yield from joined[:whole].split(plan.batch_size)
        left = joined[whole:]
    if len(left) and not plan.drop_last:
        yield left


def num_batches(plan: Plan, num_samples: int) -> int:
    """How many batches an epoch has."""
    length = plan.order.length(num_samples)
    return length // plan.batch_size if plan.drop_last else -(-length // plan.batch_size)


@dataclass
class IndexBatches(Sampler[Any]):
    """The indices of a batch at once, for a DataLoader with batch_size=None (pytorch#4959);
    `epoch` picks which.

    In this process int64 tensors, which go by reference. To workers numpy arrays, which are
    pickled: a tensor would travel in shared memory, handed over by a thread that nothing ends.
    """

    plan: Plan
    num_samples: int
    epoch: int = 0

    def __len__(self) -> int:
        return num_batches(self.plan, self.num_samples)

    def __iter__(self) -> Iterator[Any]:
        batches = index_batches(self.plan, self.num_samples, self.epoch)
        return (batch.numpy() for batch in batches) if self.plan.num_workers else batches


def shard(
    pieces: Iterable[torch.Tensor], length: int, rank: int, world_size: int, drop_last: bool = False
) -> Iterator[torch.Tensor]:
    """A rank's int64 indices of an epoch that has `length`, as torch's DistributedSampler gives
    them.

    Index k of the epoch goes to rank k % world_size. What is missing to as many for every rank
    comes from the epoch's beginning; with drop_last what is too much is left out. Memory does not
    grow beyond a piece.
    """
    whole = length - length % world_size
    end = whole if drop_last or whole == length else whole + world_size
    first, done = torch.empty(0, dtype=torch.int64), 0
    for piece in pieces:
        first = torch.cat([first, piece[: world_size - len(first)]])
        mine = piece[: max(0, end - done)][(rank - done) % world_size :: world_size]
        if len(mine):
            yield mine
        done += len(piece)
    padding = (rank - length) % world_size
    if padding < end - length:
        yield first[padding % length].view(1)


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """A rank's share of an order."""

    order: Order
    rank: int
    world_size: int
    complete: ClassVar[bool] = False

    def length(self, num_samples: int) -> int:
        """The same for every rank: the last ones are given what they lack, see shard."""
        return -(-self.order.length(num_samples) // self.world_size)

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """This rank's int64 indices."""
        pieces = self.order.pieces(num_samples, seed, epoch)
        return shard(pieces, self.order.length(num_samples), self.rank, self.world_size)


def of_rank(plan: Plan, rank: int, world_size: int) -> Plan:
    """The plan of one of several ranks; of one alone it stays as it is."""
    if world_size == 1:
        return plan
    whole = whole_order(plan)
    dealt = whole.dealt_to(world_size) if isinstance(whole, Dealt) else whole
    order = Sharded(order=dealt, rank=rank, world_size=world_size)
    return replace(plan, order=order, rank=rank, world_size=world_size)


def whole_order(plan: Plan) -> Order:
    """The order of all ranks together."""
    return plan.order.order if isinstance(plan.order, Sharded) else plan.order
