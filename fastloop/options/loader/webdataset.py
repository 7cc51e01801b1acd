"""`loader=webdataset`: webdataset's pipeline over tar files, in torch's DataLoader."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import NonNegativeInt

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.order_parts import is_shuffled
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.seeds import epoch_seed
from fastloop.core.trees import stack_leaves
from fastloop.core.types import Batches, Epochs, Unsupported, option
from fastloop.data.shard_checks import check_shards
from fastloop.data.torch_epochs import stream_epochs

LIBRARY = Library("webdataset", "loader=webdataset", "pip install webdataset")


@option
class WebDatasetLoader:
    """A pipeline of webdataset: `shuffle`, `tar_file_expander`, `to_tuple`, `map_tuple`, `batched`.

    This is not a full shuffle: the shards of a worker are shuffled, and then the samples in a
    buffer. Workers make whole batches of their own shards, so each worker's last batch may be
    incomplete.
    """

    store: Store
    """The store to read."""
    shuffle_buffer: NonNegativeInt
    """Number of samples among which order=random draws the next sample; 0: only the shards are
    shuffled."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    shuffles_itself: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported if webdataset is not installed."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs.

        Raises Unsupported if the store has no tar files, or fewer shards (tar files) than all ranks
        together have workers.
        """
        shards: Any = self.store.open(prepared.folder)
        if not hasattr(shards, "files_of_a_sample"):
            raise Unsupported(
                "loader=webdataset reads tar files only: use store@loader.store=webdataset"
            )
        check_shards(plan, len(shards.paths))
        LIBRARY.load()
        with stream_epochs(partial(self._batches, shards, plan), plan) as epochs:
            yield epochs

    def _batches(self, shards: Any, plan: Plan, epoch: int) -> Batches:
        """The batches of this process, which webdataset knows as a worker of a DataLoader."""
        wds = LIBRARY.load()
        loading = plan.loading
        paths = shards.paths[plan.rank :: plan.world_size]
        is_random = is_shuffled(plan)
        seed = epoch_seed(plan.seed, epoch)
        names = shards.files_of_a_sample()
        collate = partial(stack_leaves, shards.structure)
        # webdataset.WebDataset would leave each shard open until Python frees it.
        stages = [
            wds.SimpleShardList(paths),
            wds.split_by_worker,
            wds.shuffle(len(paths), seed=seed) if is_random else None,
            _open_shards,
            wds.tariterators.tar_file_expander,
            wds.tariterators.group_by_keys,
            wds.shuffle(self.shuffle_buffer, seed=seed) if is_random else None,
            wds.to_tuple(*names),
            wds.map_tuple(*[_decode_npy] * len(names)),
            wds.batched(loading.batch_size, collation_fn=collate, partial=not loading.drop_last),
        ]
        yield from wds.DataPipeline(*stages)


def _open_shards(sources: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Open one shard after the other, and close each one; a stage of the pipeline.

    sources: dicts with the path of a shard as `url`. Yields each dict with the open file as
    `stream`.
    """
    for source in sources:
        with open(source["url"], "rb") as stream:
            yield source | {"stream": stream}


def _decode_npy(data: bytes) -> torch.Tensor:
    """The tensor with the array of a .npy file."""
    return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
