"""Columns of images in memory and of their labels, which replace a dataset of torchvision.

ImageRows makes the tensors that the dataset's transform makes, and ImageLabels has the labels;
recognise_image_arrays.py opens both. torchvision and Pillow are never imported here: a program that
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
    """A random crop of images with margins of zeros, and a random flip."""

    size: tuple[int, int] | None = None
    """(height, width) of the crop in pixels; None: the whole image."""
    margins: Margins = NO_MARGINS
    """Zeros that are added to the image before the crop."""
    flip: float = 0.0
    """The probability that left and right change places."""

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels of images of that size with their margins."""
        margins = self.margins
        return margins.top + height + margins.bottom, margins.left + width + margins.right

    def move(self, pixels: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
        """The cropped and flipped images of `pixels`, which is (n, height, width, ...).

        The random numbers of an image depend only on the seed and on the image's number in
        `indices`, which is (n,).
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
    """A random float64 number in [0, 1) for each index, of 53 bits, as torch draws doubles.

    number: distinguishes the draws that an image needs.
    """
    return (random_bits(indices, mix_seed(seed, number)) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class Steps:
    """The work of a transform on an image in memory, in the order of the fields."""

    reshaping: tuple[Any, ...]
    """Transforms that are called with each image of Pillow, before all other steps."""
    shape: tuple[int, ...]
    """The shape of the images that `reshaping` makes: (height, width) or (height, width, 3)."""
    moves: RandomMoves | None
    """The random crop and flip of the reshaped images; None: there is neither."""
    pointwise: tuple[Any, ...]
    """Transforms that change each value of a pixel by itself, after all other steps."""

    def reshape(self, pixels: np.ndarray) -> np.ndarray:
        """The images after `reshaping`, (n, *shape) uint8.

        pixels: uint8 images, (n, height, width) or (n, height, width, 3).
        """
        if not self.reshaping:
            return pixels
        reshaped = np.empty((len(pixels), *self.shape), np.uint8)
        for number, image in enumerate(pixels):
            reshaped[number] = np.asarray(apply_parts(self.reshaping, make_image(image)))
        return reshaped


@dataclass(frozen=True, eq=False)
class ImageRows:
    """The column of images, which does the work of the transform that the dataset had once."""

    dataset: Any
    """The dataset, or a Subset of it."""
    places: np.ndarray | None
    """The places of a Subset's samples in the dataset; None: all images, in order."""
    pixels: np.ndarray
    """uint8, of shape (num_images, height, width) or (num_images, height, width, 3)."""
    steps: Steps
    """The work of the dataset's transform when the column was opened."""
    table: np.ndarray
    """The result of the pointwise transforms for each value of a pixel: (channels, 256)."""
    reopen: Callable[[Any], ImageRows | None]
    """Opens the column of the dataset as it is now; returns None if there can be no such column any
    more."""
    seed: int = 0
    """The seed of the random moves of an epoch."""

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def slow(self) -> bool:
        """True if images are reshaped or moved: all threads then share the work on each batch."""
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
        """True if the dataset still has these images, and a transform that gives these results."""
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
            # The table has an entry for every byte, so nothing is clipped. In its default mode,
            # numpy would write to a copy first.
            np.take(values, rows, out=images[:, channel], mode="clip")


@dataclass(frozen=True, eq=False)
class ImageLabels:
    """The column of the labels that a dataset had when the column was opened."""

    dataset: Any
    """The dataset, or a Subset of it."""
    places: np.ndarray | None
    """The places of a Subset's samples in the dataset; None: all labels, in order."""
    labels: np.ndarray
    """int64 labels of all samples of the dataset."""
    reopen: Callable[[Any], ImageLabels | None]
    """Opens the column of the dataset as it is now; returns None if there can be no such column any
    more."""

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
    """True for two equal views of the same memory.

    The numbers are not compared, because there may be many.
    """
    return first.__array_interface__ == second.__array_interface__


def _are_equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """True for two arrays of the same dtype, shape and bytes, and for two times None."""
    if first is None or second is None:
        return first is second
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # The bytes are compared, because a NaN is not equal to itself.
    return _is_same_memory(first, second) or first.tobytes() == second.tobytes()


def make_image(pixels: np.ndarray) -> Any:
    """The image of Pillow that the datasets make of uint8 pixels; it is grey if they have two
    dimensions."""
    return sys.modules["PIL.Image"].fromarray(pixels)


def apply_parts(parts: Sequence[Any], image: Any) -> Any:
    """The image after these transforms, which are called one after the other."""
    for part in parts:
        image = part(image)
    return image
