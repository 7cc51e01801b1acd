"""Check that a loader of shards, the files into which a dataset is divided, can follow a plan."""

from __future__ import annotations

from fastloop.core.order_parts import OrderPrefix, order_of_all_ranks
from fastloop.core.plan import Plan
from fastloop.core.types import Unsupported, name_of


def check_stream(loader: str, plan: Plan, world_size: int) -> None:
    """Raise Unsupported for a plan that a loader of shards can't follow.

    loader: name of the loader. world_size: number of ranks that will share the plan.
    """
    order = order_of_all_ranks(plan)
    loading = plan.loading
    if isinstance(order, OrderPrefix):
        raise Unsupported(f"batches: loader={loader} shuffles the samples itself")
    if name_of(order) not in ("random", "sequential"):
        reason = f"loader={loader} reads the stored order, or shuffles it itself"
        raise Unsupported(f"order={name_of(order)}: {reason}")
    readers = world_size * max(1, loading.num_workers)
    if readers == 1:
        return
    setting = _setting_of_readers(plan, world_size)
    if name_of(order) == "sequential":
        raise Unsupported(f"{setting}: order=sequential of loader={loader} needs a single reader")
    if loading.drop_last:
        reason = f"each of {readers} readers of loader={loader} would drop samples of its own"
        raise Unsupported(f"{setting} with drop_last=true: {reason}")


def check_shards(plan: Plan, num_shards: int) -> None:
    """Raise Unsupported if there are so few shards that a worker of some rank would get none."""
    readers = plan.world_size * max(1, plan.loading.num_workers)
    if readers > num_shards:
        setting = _setting_of_readers(plan, plan.world_size)
        raise Unsupported(f"{setting}: {readers} readers of {num_shards} shards; see num_shards")


def _setting_of_readers(plan: Plan, world_size: int) -> str:
    """The setting, as on the command line, by which several processes read the shards."""
    return f"num_workers={plan.loading.num_workers}" if world_size == 1 else "launcher=torchrun"
