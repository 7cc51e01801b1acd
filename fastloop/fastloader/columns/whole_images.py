"""Whole encoded images as samples, decoded by a library and resized if a size is given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from fastloop.fastloader.columns.codecs import load_codec
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.encoded_images import EncodedImages
from fastloop.fastloader.columns.image_headers import encoding_of
from fastloop.fastloader.columns.orientation import read_orientation, turn_pixels


@dataclass(frozen=True, eq=False)
class WholeImages:
    """uint8 samples of whole images; see `Images` for the fields."""

    images: EncodedImages
    size: tuple[int, int] | None
    channels_first: bool
    antialias: bool
    decoder: str
    apply_exif_orientation: bool = False

    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.images)

    @property
    def spec(self) -> SampleSpec:
        """uint8 images of `size`, or of the first image's size."""
        height, width = self.size or self._first_size
        if self.channels_first:
            return SampleSpec(torch.uint8, (3, height, width), channels_last=True)
        return SampleSpec(torch.uint8, (height, width, 3))

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode the images at `indices` to `out`, one after the other."""
        shape = self.spec.shape[1:] if self.channels_first else self.spec.shape[:2]
        resize = load_codec(self.decoder).resize
        for index, row in zip(indices.tolist(), out.reshape(-1, *shape, 3), strict=True):
            pixels = self._decode(index)
            if pixels.shape == row.shape:
                np.copyto(row, pixels)
            elif self.size is None:
                actual = f"it is {pixels.shape[0]} x {pixels.shape[1]}, the first one {shape}"
                advice = "set size= to resize all, or crop=CenterCrop(size, resize) to cut them"
                raise ValueError(f"{self.images.name(index)}: {actual}; {advice}")
            else:
                resize(pixels, row, self.antialias)

    @cached_property
    def _first_size(self) -> tuple[int, ...]:
        return self._decode(0).shape[:2]

    def _decode(self, index: int) -> np.ndarray:
        data = self.images.read(index)
        try:
            pixels = load_codec(self.decoder).decode(data, encoding_of(data))
        except ValueError as error:
            raise ValueError(f"{self.images.name(index)}: {error}") from error
        if not self.apply_exif_orientation:
            return pixels
        # Libraries that resize take no reversed rows: the view becomes a copy.
        return np.ascontiguousarray(turn_pixels(pixels, read_orientation(data)))
