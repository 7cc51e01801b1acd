"""`loader=peers/decode`: the limit of decoding. Every file is decoded and resized, and nothing
else."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import PositiveInt

from experiments.peers.limits import iterate_after_work
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Epochs, Unsupported, option


@option
class Decode:
    """Each thread decodes and resizes its share of the files into a buffer of one batch. The
    dataset must be able to write samples to given memory (`into`). limits.py describes the
    batches."""

    store: ClassVar[None] = None
    num_threads: PositiveInt
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; all of their work is done before the first batch."""
        samples: Any = prepared.dataset.open()
        if not hasattr(samples, "into"):
            raise Unsupported(f"peers/decode: {prepared.label} has no encoded images of one size")
        size = plan.loading.batch_size
        buffers = [
            torch.zeros((size, *samples.shape), dtype=torch.uint8) for _ in range(self.num_threads)
        ]

        def decode(thread: int, indices: np.ndarray) -> None:
            batch = buffers[thread].numpy()
            for position, index in enumerate(indices.tolist()):
                samples.into(index, batch[position % size])

        labels = torch.zeros(size, dtype=torch.int64)
        batches = [(buffer, labels) for buffer in buffers]
        with ThreadPoolExecutor(self.num_threads) as pool:
            yield partial(iterate_after_work, pool, decode, batches, plan, prepared.num_samples)
