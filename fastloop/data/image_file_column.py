"""ImageFileColumn: a column of FastLoader that decodes image files into the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fastloop.data.image_files import LabelledImages
from fastloop.data.image_pixels import decode_file
from fastloop.fastloader.columns.column import SampleSpec


@dataclass(frozen=True)
class ImageFileColumn:
    """Images of one size, which the threads of a FastLoader decode into the batch."""

    images: LabelledImages
    slow: ClassVar[bool] = True
    """Decoding takes longer than a copy, so the threads divide each batch, see FastLoader's
    Column."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def spec(self) -> SampleSpec:
        """dtype and shape of an image."""
        assert self.images.size
        height, width = self.images.size
        if self.images.as_uint8:
            return SampleSpec(torch.uint8, (height, width, 3))
        return SampleSpec(torch.float32, (3, height, width))

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode these images, one by one, into `out`; raises BadData that names the file."""
        images = self.images
        rows = self.spec.view_tensor(out)
        for index, row in zip(indices.tolist(), rows, strict=True):
            path = images.path(index)
            pixels = torch.from_numpy(decode_file(path, images.decoder, images.size))
            if images.as_uint8:
                row.copy_(pixels)
            else:
                row.copy_(pixels.permute(2, 0, 1)).div_(255)
