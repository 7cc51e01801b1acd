"""`collate=fast`: a batch of uint8 images, modelled on NVIDIA's fast_collate (apex)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastloop.core.types import Tree, Unsupported, option


@option
class FastCollate:
    """A collate of uint8 images: (height, width, channels) images are copied into one batch, which
    the device converts to floats.

    As in NVIDIA's fast_collate (apex), samples are neither transposed nor converted on the host,
    and one byte per value is transferred instead of four.
    """

    takes: ClassVar[Literal["uint8"]] = "uint8"
    tolerant: ClassVar[bool] = False

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch: (uint8 (batch, height, width, channels), int64 labels)."""
        first = samples[0][0]
        batch = torch.empty((len(samples), *first.shape), dtype=torch.uint8)
        if get_worker_info() is not None:
            # The batch is made in shared memory, so that sending it from the worker copies nothing.
            batch.share_memory_()
        rows = batch.numpy()
        for row, (image, _) in zip(rows, samples, strict=True):
            np.copyto(row, image)
        return batch, torch.tensor([label for _, label in samples], dtype=torch.int64)

    def finish(self, batch: Any, uint8_scale: float | None) -> Tree:
        """The batch on the device: (float32 (batch, channels, height, width), labels), with the
        values of ToTensor."""
        if uint8_scale is None:
            raise Unsupported("collate=fast: this dataset's samples are not made from uint8")
        images, labels = batch
        return images.permute(0, 3, 1, 2).float().div_(uint8_scale), labels
