"""What loaders make of a plan: its indices, whole or batch by batch, and which settings they
honour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from fastloop.types import Order, Plan, Unsupported

ALWAYS = ("order", "seed", "batch_size", "drop_last")
"""Settings that every loader honours."""

DATALOADER = (
    *("num_workers", "pin_memory", "prefetch_factor", "persistent_workers"),
    "multiprocessing_context",
)
"""Settings of torch's DataLoader, whatever it loads."""


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
    pieces = list(order.pieces(num_samples, seed, epoch))
    return torch.cat(pieces) if len(pieces) != 1 else pieces[0]


def index_batches(plan: Plan, num_samples: int, epoch: int) -> Iterator[torch.Tensor]:
    """The int64 indices of each batch; memory does not grow beyond a piece of the order."""
    left = torch.empty(0, dtype=torch.int64)
    for piece in plan.order.pieces(num_samples, plan.seed, epoch):
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
