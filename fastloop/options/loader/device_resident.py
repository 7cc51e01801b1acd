"""`loader=device_resident`: all samples are kept on the device, which gathers the batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import optree
import psutil
import torch

from fastloop.core.cgroup import memory_left
from fastloop.core.index_batches import epoch_indices
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, Unsupported, option
from fastloop.data.rows import tensors_of

SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtype that index_select lacks on some devices -> dtype of the same size that stands in for it."""


@option
class DeviceResidentLoader:
    """A loader with all samples on the device, which gathers each batch by one `index_select` per
    leaf.

    The indices of an epoch are copied to the device once, 8 bytes per sample. The placement has
    nothing to move.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True
    is_on_device: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; all rows are copied to the plan's device first.

        Raises Unsupported, with the sizes, if the rows do not fit into its free memory.
        """
        device = plan.device or torch.device("cpu")
        rows = tensors_of(self.store.open(prepared.folder))
        leaves, structure = optree.tree_flatten(rows)
        check_fits(sum(leaf.nbytes for leaf in leaves), free_bytes(device), device)
        dtypes = [leaf.dtype for leaf in leaves]
        # Blocking copies are complete for any stream that gathers later.
        resident = [_with_indexable_dtype(leaf).to(device, copy=True) for leaf in leaves]

        def batch(indices: torch.Tensor) -> Tree:
            gathered = (leaf.index_select(0, indices) for leaf in resident)
            restored = [leaf.view(dtype) for leaf, dtype in zip(gathered, dtypes, strict=True)]
            return optree.tree_unflatten(structure, restored)

        def epochs(epoch: int) -> Iterator[Tree]:
            indices = epoch_indices(plan.order, prepared.num_samples, plan.seed, epoch)
            if plan.loading.drop_last:
                indices = indices[: len(indices) - len(indices) % plan.loading.batch_size]
            # torch splits an empty tensor into one empty part.
            parts = indices.to(device).split(plan.loading.batch_size) if len(indices) else ()
            return map(batch, parts)

        yield epochs


def free_bytes(device: torch.device) -> int:
    """Bytes free for tensors on the device; on CUDA including torch's cache of freed blocks."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    # On Apple silicon, the GPU uses the machine's memory.
    available = psutil.virtual_memory().available
    return min([available, *memory_left()])


def check_fits(needed: int, free: int, device: torch.device) -> None:
    """Raise Unsupported if more bytes are needed than are free."""
    if needed > free:
        sizes = f"{needed / 2**20:,.0f} MiB of samples, {free / 2**20:,.0f} MiB are free"
        raise Unsupported(f"loader=device_resident: {sizes} on device {device}")


def _with_indexable_dtype(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf with the same bits, in a dtype that index_select has on every device."""
    return leaf.view(SAME_BITS.get(leaf.dtype, leaf.dtype))
