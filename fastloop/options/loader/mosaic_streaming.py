"""`loader=mosaic_streaming`: MosaicML Streaming's StreamingDataset, in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.index_batches import group_samples
from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.order_parts import is_shuffled
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Tree, Unsupported, option
from fastloop.data.torch_epochs import stream_epochs

LIBRARY = Library("streaming", "loader=mosaic_streaming", "pip install mosaicml-streaming")


@option
class MosaicStreamingLoader:
    """DataLoader over MosaicML Streaming's
    `StreamingDataset(local=folder, batch_size, shuffle, shuffle_seed)`, with local shards.

    Streaming's default shuffle, py1e, shuffles the shards, and then moves each sample within a
    range of 4,000,000 samples. Each worker makes whole batches, so each worker's last batch may be
    incomplete. numpy.stack makes a batch from the arrays of its samples.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    shuffles_itself: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without MosaicML Streaming."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs of one StreamingDataset; raises Unsupported for several ranks."""
        if plan.world_size > 1:
            reason = "MosaicML Streaming repeats samples so that all ranks have as many"
            raise Unsupported(f"launcher=torchrun: {reason}; use loader=webdataset")
        shards: Any = self.store.open(prepared.folder)
        if not hasattr(shards, "columns"):
            reason = "reads shards of MosaicML Streaming only: use"
            raise Unsupported(
                f"loader=mosaic_streaming {reason} store@loader.store=mosaic_streaming"
            )
        dataset = LIBRARY.load().StreamingDataset(
            local=str(prepared.folder),
            batch_size=plan.loading.batch_size,
            shuffle=is_shuffled(plan),
            shuffle_seed=plan.seed % 2**32,
        )
        try:
            batches = partial(_batches, dataset, shards.columns, shards.structure, plan)
            with stream_epochs(batches, plan) as epochs:
                yield epochs
        finally:
            _close(dataset)


def _batches(dataset: Any, columns: list[str], structure: Any, plan: Plan, epoch: int) -> Batches:
    """The batches of this process, which Streaming knows as a worker of a DataLoader."""
    # Every worker sets the same number before any worker passes the barrier. After the barrier, the
    # dataset counts the number up.
    dataset.next_epoch = epoch
    for samples in group_samples(dataset, plan):
        yield _collate(columns, structure, samples)


def _collate(columns: list[str], structure: Any, samples: list[dict[str, Any]]) -> Tree:
    leaves = [torch.from_numpy(np.stack([each[name] for each in samples])) for name in columns]
    return pytree.tree_unflatten(leaves, structure)


def _close(dataset: Any) -> None:
    """End the dataset's threads, and remove its shared memory and the files of its locks.

    Streaming leaves threads and files forever, and shared memory until the process has ended.
    """
    if (iterator := getattr(dataset, "_iterator", None)) is not None:
        iterator.exit()
        dataset._executor.shutdown()
    arrays = [
        dataset._shard_states,
        dataset._shard_access_times,
        dataset._shared_barrier._arr,
        dataset._next_epoch.arr,
        dataset._cache_usage.arr,
    ]
    for memory in [dataset._locals_shm, *(array.shm for array in arrays)]:
        memory.cleanup()
    for path in (dataset._cache_filelock_path, dataset._shared_barrier.filelock_path):
        Path(path).unlink(missing_ok=True)
