"""`loader=hf_iterable`: a Hugging Face IterableDataset in torch format, in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt
from torch.utils.data import get_worker_info

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.order_parts import is_shuffled
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Unsupported, option
from fastloop.data.shard_checks import check_shards
from fastloop.data.torch_epochs import stream_epochs

LIBRARY = Library("datasets", "loader=hf_iterable", "pip install datasets")


@option
class HfIterableLoader:
    """DataLoader over an IterableDataset of Hugging Face in torch format:
    `Dataset.to_iterable_dataset(num_shards).shuffle(seed, buffer_size).iter(…)`.

    This is not a full shuffle: the shards are shuffled, and then the samples in the buffer. A
    worker makes whole batches of its own shards, so each worker may end with a short batch.
    """

    store: Store
    """The store to read."""
    num_shards: PositiveInt
    """Number of parts into which the file is divided; each worker of each rank needs at least one
    part."""
    buffer_size: PositiveInt
    """Number of samples among which order=random draws the next sample."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    shuffles_itself: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without datasets."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; raises Unsupported if the shards are fewer than all ranks' workers."""
        check_shards(plan, min(self.num_shards, prepared.num_samples))
        rows: Any = self.store.open(prepared.folder)
        if not hasattr(rows, "dataset"):
            raise Unsupported(
                "loader=hf_iterable reads Arrow files only: use store@loader.store=hf_datasets"
            )
        with stream_epochs(partial(self._batches, prepared.folder, plan), plan) as epochs:
            yield epochs

    def _batches(self, folder: Path, plan: Plan, epoch: int) -> Batches:
        """The batches of this process. A DataLoader's worker makes batches from its own shards
        only."""
        rows: Any = self.store.open(folder)
        stream = rows.dataset.to_iterable_dataset(min(self.num_shards, len(rows.dataset)))
        if is_shuffled(plan):
            stream = stream.shuffle(seed=plan.seed, buffer_size=self.buffer_size)
        if plan.world_size > 1:
            distributed = LIBRARY.load("datasets.distributed")
            stream = distributed.split_dataset_by_node(stream, plan.rank, plan.world_size)
        if worker := get_worker_info():
            # iter() below, unlike a loop over samples, does not deal the shards out to workers.
            stream = stream.shard(worker.num_workers, worker.id, contiguous=False)
        stream = stream.with_format("torch")
        # set_epoch comes last, because each step above returns a new stream at epoch 0.
        stream.set_epoch(epoch)
        # batch() would convert each row of each sample by itself, which takes 11 times as long.
        size = plan.loading.batch_size
        drop_last = plan.loading.drop_last
        for columns in stream.iter(size, drop_last_batch=drop_last):
            yield rows.tree(columns)
