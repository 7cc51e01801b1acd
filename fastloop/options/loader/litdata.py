"""`loader=litdata`: LitData's StreamingDataset, in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch

from fastloop.core.index_batches import group_samples
from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library, isolate_import
from fastloop.core.order_parts import is_shuffled
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.trees import stack_leaves
from fastloop.core.types import Batches, Epochs, Unsupported, option
from fastloop.data.shard_checks import check_shards
from fastloop.data.torch_epochs import stream_epochs

SHUFFLE_WINDOW = 256
"""Samples that are shuffled, and decoded, together: LitData's default of item_shuffle_window, which
its documentation pairs with batch_decode."""
LIBRARY = Library("litdata", "loader=litdata", "pip install litdata")


@option
class LitDataLoader:
    """DataLoader over LitData's `StreamingDataset(folder, shuffle, seed, batch_decode=256)`, with
    chunks in a local folder.

    This is not a full shuffle: the chunks are shuffled, and then the samples of each chunk in
    blocks of 256, which are also decoded together. LitData's default, batch_decode="auto", decodes
    32 tensors at once, but the shuffled order uses only one or two of them before it needs others:
    22 samples were decoded for each delivered sample. Workers make whole batches of their own
    chunks, so each worker's last batch may be incomplete.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    shuffles_itself: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without LitData."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; raises Unsupported for several ranks, and for more workers than
        chunks."""
        if plan.world_size > 1:
            reason = "LitData drops samples so that all ranks have as many"
            raise Unsupported(f"launcher=torchrun: {reason}; use loader=webdataset")
        chunks: Any = self.store.open(prepared.folder)
        if not hasattr(chunks, "num_chunks"):
            raise Unsupported(
                "loader=litdata reads LitData's chunks only: use store@loader.store=litdata"
            )
        check_shards(plan, chunks.num_chunks)
        LIBRARY.load()
        with stream_epochs(partial(self._batches, chunks, plan), plan) as epochs:
            yield epochs

    def _batches(self, chunks: Any, plan: Plan, epoch: int) -> Batches:
        """The batches of this process, which LitData knows as a worker of a DataLoader."""
        loading = plan.loading
        dataset = LIBRARY.load().StreamingDataset(
            str(chunks.folder),
            shuffle=is_shuffled(plan),
            seed=plan.seed % 2**32,
            drop_last=False,
            batch_decode=SHUFFLE_WINDOW,
        )
        dataset.set_batch_size(loading.batch_size)
        dataset.set_num_workers(loading.num_workers)
        # LitData makes tensors of read-only memory, and torch warns of that once per process. This
        # line causes the warning here, where it is suppressed.
        with isolate_import():
            torch.frombuffer(bytes(1), dtype=torch.uint8)
        # LitData counts epochs from 1.
        dataset.set_epoch(epoch + 1)
        for samples in group_samples(dataset, plan):
            yield stack_leaves(chunks.structure, samples)
