"""Columns of images in memory and their labels: rows of bytes, moved and converted to tensors.

ImageRows does what the transform of a dataset of torchvision does, and ImageLabels has the labels;
recognise_image_arrays.py opens them. torchvision and Pillow are never imported here: a program that
uses such a dataset has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop.core.seeds import mix_seed, random_bits
from fastloop.fastloader.columns.column import Column, SampleSpec


class Margins(NamedTuple):
    """Widths in pixels of the zeros that are added at the four sides of an image."""

    left: int
    top: int
    right: int
    bottom: int


NO_MARGINS = Margins(0, 0, 0, 0)
"""The margins of an image to which no zeros are added."""


@dataclass(frozen=True, kw_only=True)
class RandomMoves:
    """A crop at random of images with a margin of zeros, and a flip at random."""

    size: tuple[int, int] | None = None
    """(height, width) of the crop; None: the whole image."""
    margins: Margins = NO_MARGINS
    """Zeros that are added to the image before the crop."""
    flip: float = 0.0
    """The probability that left and right change places."""

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the images with their margins."""
        margins = self.margins
        return margins.top + height + margins.bottom, margins.left + width + margins.right

    def move(self, pixels: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
        """The cropped and flipped images of `pixels`, which is (n, height, width, ...).

        The random numbers of an image depend on the seed and its index alone.
        """
        height, width = self.sides(*pixels.shape[1:3])
        rows, columns = self.size or (height, width)
        if any(self.margins):
            rows_added = self.margins.top, self.margins.bottom
            columns_added = self.margins.left, self.margins.right
            of_channels = [(0, 0)] * (pixels.ndim - 3)
            pixels = np.pad(pixels, [(0, 0), rows_added, columns_added, *of_channels])
        tops, lefts, flips = (_draw(indices, seed, number) for number in range(3))
        tops = (tops * (height - rows + 1)).astype(np.int64)
        lefts = (lefts * (width - columns + 1)).astype(np.int64)
        across = np.arange(columns)
        kept = np.where(flips[:, None] < self.flip, across[::-1], across)
        return pixels[
            np.arange(len(pixels))[:, None, None],
            (tops[:, None] + np.arange(rows))[:, :, None],
            (lefts[:, None] + kept)[:, None, :],
        ]


def _draw(indices: np.ndarray, seed: int, number: int) -> np.ndarray:
    """Numbers from 0 to 1, without 1: of 53 random bits, as torch draws doubles."""
    return (random_bits(indices, mix_seed(seed, number)) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class Steps:
    """The work of a transform on an image in memory, in the order of the fields."""

    reshaping: tuple[Any, ...]
    """Transforms to call with each image of Pillow, before all others."""
    shape: tuple[int, ...]
    """The shape of the images that `reshaping` makes: (height, width) or (height, width, 3)."""
    moves: RandomMoves | None
    """The random crop and flip of the reshaped images; None: there is neither."""
    pointwise: tuple[Any, ...]
    """Transforms that change each value of a pixel by itself, after all others."""

    def reshape(self, pixels: np.ndarray) -> np.ndarray:
        """The reshaped images of (n, height, width) or (n, height, width, 3)."""
        if not self.reshaping:
            return pixels
        reshaped = np.empty((len(pixels), *self.shape), np.uint8)
        for number, image in enumerate(pixels):
            reshaped[number] = np.asarray(apply_parts(self.reshaping, make_image(image)))
        return reshaped


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Rows of bytes, moved and converted as the dataset's transform said when it was opened."""

    dataset: Any
    """The dataset, or a Subset of it."""
    places: np.ndarray | None
    """The places of a Subset's samples in the dataset; None: all, in order."""
    pixels: np.ndarray
    """uint8, of shape (num_images, height, width) or (num_images, height, width, 3)."""
    steps: Steps
    table: np.ndarray
    """The result of the pointwise transforms for each value of a pixel: (channels, 256)."""
    reopen: Callable[[Any], ImageRows | None]
    """Opens the rows of the dataset as it is now; None if it can't be read as rows any more."""
    seed: int = 0
    """The seed of an epoch."""

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def slow(self) -> bool:
        """True if images are reshaped or moved: threads then share each batch, like those of image
        folders."""
        return self.steps.moves is not None or bool(self.steps.reshaping)

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the samples."""
        moves = self.steps.moves
        height_width = self.steps.shape[:2]
        if moves is not None:
            height_width = moves.size or moves.sides(*height_width)
        dtype = torch.from_numpy(self.table[:0]).dtype
        return SampleSpec(dtype, (len(self.table), *height_width))

    def with_seed(self, seed: int) -> Column:
        """The column of an epoch with this seed."""
        return replace(self, seed=seed)

    def is_current(self) -> bool:
        """True if the dataset still has these images, and a transform with these results."""
        now = self.reopen(self.dataset)
        return (
            now is not None
            and _is_same_memory(now.pixels, self.pixels)
            and _are_equal(now.places, self.places)
            and now.steps == self.steps
            and _are_equal(now.table, self.table)
        )

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the converted images at `indices` to `out`."""
        pixels = self.pixels[indices if self.places is None else self.places[indices]]
        pixels = self.steps.reshape(pixels)
        if self.steps.moves is not None:
            pixels = self.steps.moves.move(pixels, indices, self.seed)
        images = self.spec.view_tensor(out).numpy()
        for channel, values in enumerate(self.table):
            rows = pixels if pixels.ndim == 3 else pixels[..., channel]
            # All bytes are within the table. Without a mode, numpy would write to a copy first.
            np.take(values, rows, out=images[:, channel], mode="clip")


@dataclass(frozen=True, eq=False)
class ImageLabels:
    """The labels that a dataset had when it was opened."""

    dataset: Any
    """The dataset, or a Subset of it."""
    places: np.ndarray | None
    """The places of a Subset's samples in the dataset; None: all, in order."""
    labels: np.ndarray
    reopen: Callable[[Any], ImageLabels | None]
    """Opens the labels of the dataset as it is now; None if they can't be read natively any more.
    """

    spec = SampleSpec(torch.int64, ())

    def __len__(self) -> int:
        return len(self.dataset)

    def is_current(self) -> bool:
        """True if the dataset still has these labels."""
        now = self.reopen(self.dataset)
        return (
            now is not None
            and _are_equal(now.labels, self.labels)
            and _are_equal(now.places, self.places)
        )

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the labels at `indices` to `out`."""
        places = indices if self.places is None else self.places[indices]
        out.view(np.int64)[:, 0] = self.labels[places]


def _is_same_memory(first: np.ndarray, second: np.ndarray) -> bool:
    """True for two views of the same numbers. They are not compared: there may be many."""
    return first.__array_interface__ == second.__array_interface__


def _are_equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """True for arrays of the same bytes and dtype, and for None twice."""
    if first is None or second is None:
        return first is second
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # Bytes are compared: a NaN is not equal to itself.
    return _is_same_memory(first, second) or first.tobytes() == second.tobytes()


def make_image(pixels: np.ndarray) -> Any:
    """The image of Pillow that the datasets make of bytes: grey ones of two dimensions."""
    return sys.modules["PIL.Image"].fromarray(pixels)


def apply_parts(parts: Sequence[Any], image: Any) -> Any:
    """The image after these transforms, which are called one after the other."""
    for part in parts:
        image = part(image)
    return image
