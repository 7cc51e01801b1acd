"""The indices of the samples that all ranks together deliver in an epoch.

An *index* is the number of a sample in the dataset. A *position* is a place in the order of an
epoch. The last ranks may have to repeat some indices, so that all ranks get the same number of
them; the repeated ones are called the padding. Samples that can't be decoded are delivered by no
rank.
"""

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
    """Indices, int64, that all ranks together deliver in an epoch, with the padding.

    None if each index is delivered once, in whichever order.
    """
    # The caller compares a sum of hashes, which does not depend on the order of the samples. So no
    # permutation is computed if each index is delivered once.
    order = order_of_all_ranks(plan)
    is_even = order.length(prepared.num_samples) % plan.world_size == 0
    if order.complete and is_even and not plan.loading.drop_last and not prepared.broken:
        return None
    return readable_indices(prepared, plan, epoch, positions_of_ranks(prepared, plan))


def indices_without_padding(prepared: PreparedData, plan: Plan, epoch: int) -> np.ndarray | None:
    """Indices, int64, of an epoch without the padding; drop_last is ignored.

    None if each index is delivered once, in whichever order.
    """
    order = order_of_all_ranks(plan)
    if order.complete and not prepared.broken:
        return None
    return readable_indices(prepared, plan, epoch, np.arange(order.length(prepared.num_samples)))


def readable_indices(
    prepared: PreparedData, plan: Plan, epoch: int, positions: np.ndarray
) -> np.ndarray:
    """Indices, int64, at these positions, without samples that can't be decoded.

    positions: int64, in the order that all ranks share.
    """
    indices = epoch_indices(order_of_all_ranks(plan), prepared.num_samples, plan.seed, epoch)
    selected = indices.numpy()[positions]
    return selected[~np.isin(selected, [index for index, _ in prepared.broken])]


def positions_of_ranks(prepared: PreparedData, plan: Plan) -> np.ndarray:
    """The positions, int64, that the ranks deliver: those of rank 0, then those of rank 1, etc.

    They are positions in the order that all ranks share. Raises Unsupported if drop_last leaves no
    batch.
    """
    positions = torch.arange(order_of_all_ranks(plan).length(prepared.num_samples))
    pieces = [shard([positions], rank, plan.world_size) for rank in range(plan.world_size)]
    # torch.cat refuses an empty list, so an empty tensor comes with the pieces of each rank.
    shares = [torch.cat([positions[:0], *of_rank]) for of_rank in pieces]
    if plan.loading.drop_last:
        # Each rank drops the incomplete batch at the end of its own share.
        size, count = plan.loading.batch_size, len(shares[0])
        if count < size:
            raise Unsupported(f"drop_last=true: {count} samples are fewer than batch_size={size}")
        shares = [share[: len(share) - len(share) % size] for share in shares]
    return torch.cat(shares).numpy()
