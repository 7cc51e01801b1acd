"""`loader=device_resident`: all samples lie on the device, and batches are gathered there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import optree
import psutil
import torch

from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.rows import tensors_of
from fastloop.types import Epochs, Plan, Prepared, Tree, Unsupported, option

SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtypes that torch has no index_select for on every device, and what their bits travel as."""


@option
class DeviceResident:
    """`index_select` once a leaf and batch, by indices that are moved there once an epoch.

    Nothing is left for a placement to move. An epoch's indices take 8 bytes a sample.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches on the plan's device, which all rows are copied to first.

        Raises Unsupported, with the sizes, where they do not fit into its free memory.
        """
        honours_only("device_resident", plan, *self.honours)
        device = plan.device or torch.device("cpu")
        rows = tensors_of(self.store.open(prepared.folder))
        leaves, structure = optree.tree_flatten(rows)
        check_fits(sum(leaf.nbytes for leaf in leaves), free_bytes(device), device)
        dtypes = [leaf.dtype for leaf in leaves]
        # blocking copies: whichever stream gathers, they have ended
        resident = [_bits(leaf).to(device, copy=True) for leaf in leaves]

        def batch(indices: torch.Tensor) -> Tree:
            gathered = (leaf.index_select(0, indices) for leaf in resident)
            taken = [one.view(dtype) for one, dtype in zip(gathered, dtypes, strict=True)]
            return optree.tree_unflatten(structure, taken)

        def epochs(epoch: int) -> Iterator[Tree]:
            indices = epoch_indices(plan.order, prepared.num_samples, plan.seed, epoch)
            if plan.drop_last:
                indices = indices[: len(indices) - len(indices) % plan.batch_size]
            # no part of nothing: split would give one that is empty
            parts = indices.to(device).split(plan.batch_size) if len(indices) else ()
            return map(batch, parts)

        yield epochs


def free_bytes(device: torch.device) -> int:
    """Memory that is free for tensors there; on CUDA also what torch keeps of freed ones."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    available = psutil.virtual_memory().available  # which Apple's devices share
    granted = cgroup_bytes(Path("/sys/fs/cgroup"))
    return available if granted is None else min(available, granted)


def cgroup_bytes(folder: Path) -> int | None:
    """Memory that a cgroup v2 still grants, as a container's; pages of files, which the kernel
    would drop, are free. None: no limit."""
    try:
        limit, used = (int((folder / f"memory.{one}").read_text()) for one in ("max", "current"))
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such files, or "max"
        return None
    pages = dict(line.split() for line in lines)
    dropped = sum(int(pages.get(f"{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, limit - used + dropped)


def check_fits(needed: int, free: int, device: torch.device) -> None:
    """Raise Unsupported where more is needed than is free."""
    if needed > free:
        sizes = f"{needed / 2**20:,.0f} MiB of samples, {free / 2**20:,.0f} MiB are free"
        raise Unsupported(f"loader=device_resident: {sizes} on device {device}")


def _bits(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.view(SAME_BITS.get(leaf.dtype, leaf.dtype))
