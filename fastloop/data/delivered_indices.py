"""The indices of the samples that all ranks together deliver in an epoch."""

from __future__ import annotations

import numpy as np
import torch

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import order_of_all_ranks
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.sharding import shard
from fastloop.core.types import Unsupported


def indices_to_deliver(prepared: PreparedData, plan: Plan, epoch: int) -> np.ndarray | None:
    """Indices, int64, that all ranks together deliver in an epoch; None: each index once.

    The padding is included, which repeats indices so that all ranks get the same number.
    """
    # A sum of hashes does not depend on the order of the samples. If each index is delivered once,
    # None therefore saves the memory and the time of a permutation.
    order = order_of_all_ranks(plan)
    is_even = order.length(prepared.num_samples) % plan.world_size == 0
    if order.complete and is_even and not plan.loading.drop_last and not prepared.broken:
        return None
    return readable_indices(prepared, plan, epoch, positions_of_ranks(prepared, plan))


def indices_without_padding(prepared: PreparedData, plan: Plan, epoch: int) -> np.ndarray | None:
    """Indices, int64, of an epoch without the padding of ranks; None: each index once.

    The plan's drop_last is ignored.
    """
    order = order_of_all_ranks(plan)
    if order.complete and not prepared.broken:
        return None
    return readable_indices(prepared, plan, epoch, np.arange(order.length(prepared.num_samples)))


def readable_indices(
    prepared: PreparedData, plan: Plan, epoch: int, positions: np.ndarray
) -> np.ndarray:
    """Indices, int64, at these positions of the order, without samples that can't be decoded.

    positions: int64 places in the order of all ranks.
    """
    indices = epoch_indices(order_of_all_ranks(plan), prepared.num_samples, plan.seed, epoch)
    selected = indices.numpy()[positions]
    return selected[~np.isin(selected, [index for index, _ in prepared.broken])]


def positions_of_ranks(prepared: PreparedData, plan: Plan) -> np.ndarray:
    """Positions, int64, in the order of all ranks that the ranks deliver, rank by rank.

    Raises Unsupported if drop_last leaves no batch.
    """
    # With drop_last, each rank drops the incomplete batch at the end of its own share.
    length = order_of_all_ranks(plan).length(prepared.num_samples)
    whole = [torch.arange(length)]
    ranks = [shard(whole, rank, plan.world_size) for rank in range(plan.world_size)]
    shards = [torch.cat([*pieces, whole[0][:0]]) for pieces in ranks]
    if not plan.loading.drop_last:
        return torch.cat(shards).numpy()
    size = plan.loading.batch_size
    if len(shards[0]) < size:
        count = len(shards[0])
        raise Unsupported(f"drop_last=true: {count} samples are fewer than batch_size={size}")
    return torch.cat(
        [positions[: len(positions) - len(positions) % size] for positions in shards]
    ).numpy()
