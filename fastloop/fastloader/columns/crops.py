"""RandomResizedCrop and CenterCrop, which cut samples out of images as torchvision's classes do.

native/jpeg/cut.c computes the same random numbers and cuts, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from fastloop.core.seeds import splitmix64

ATTEMPTS = 10
"""The number of attempts to find a random crop that lies within the image, as in torchvision."""
DRAWS_PER_ATTEMPT = 4
"""The number of draws of an attempt: share of the area, ratio, top and left."""
FLIP_DRAW = ATTEMPTS * DRAWS_PER_ATTEMPT
"""The number of the draw that decides about the flip. It follows the draws of all attempts."""
RANDOM_RESIZED_CROP, CENTER_CROP = 0, 1
"""The native decoder's kinds of crops, as in jpeg.h."""
MAX_SIDE = 1 << 14
"""Maximum length of a sample's side, and of a resized image's shorter side, in pixels."""
Size = int | tuple[int, int]
"""(height, width), or one number for both, in pixels."""


@dataclass(frozen=True)
class Axis:
    """The cut along one axis of an image, in pixels.

    `length` pixels of the image, from `start` on, are resized to `resized` pixels. `count` of these
    pixels, from `first` on, are the sample.
    """

    start: int
    length: int
    resized: int
    first: int
    count: int


@dataclass(frozen=True)
class Cut:
    """The part of an image that is a sample."""

    rows: Axis
    columns: Axis
    is_flipped: bool = False
    """True if the sample is flipped horizontally."""


class Crop(Protocol):
    """A way to cut samples of one size out of images of any size."""

    @property
    def height_width(self) -> tuple[int, int]:
        """The height and width of a sample, in pixels."""
        ...

    @property
    def native(self) -> tuple:
        """The first items of the tuple `crop` that the native decoder's functions take.

        The next items are the probability of a flip and, if given, True if the EXIF orientation is
        applied.
        """
        ...

    def cut(self, key: int, height: int, width: int) -> Cut:
        """The part of an image that is a sample.

        key: the seed of the sample's random numbers. height, width: of the image, in pixels.
        """
        ...


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of each image, resized: torchvision's RandomResizedCrop.

    Args:
        size: (height, width) of the samples in pixels, or one number for both.
        scale: the least and the greatest area of the part, as shares of the image's area.
        ratio: the least and the greatest width / height of the part.

    Raises ValueError for an invalid argument.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        check_size(self.size)
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most or math.isinf(high):
                raise ValueError(
                    f"{name}={(low, high)}: allowed are 0 < least <= greatest"
                    + (" <= 1" if name == "scale" else "")
                )

    @property
    def height_width(self) -> tuple[int, int]:
        """The height and width of a sample."""
        return as_pair(self.size)

    @property
    def native(self) -> tuple:
        """The first items of the native decoder's tuple `crop`."""
        return RANDOM_RESIZED_CROP, self.height_width, tuple(self.scale), tuple(self.ratio), 0

    def cut(self, key: int, height: int, width: int) -> Cut:
        """The part that is drawn with the key; the middle of the image if no attempt succeeds."""
        low, high = map(math.log, self.ratio)
        for number in range(0, FLIP_DRAW, DRAWS_PER_ATTEMPT):
            # The draws are numbered as in cut.c.
            share = self.scale[0] + (self.scale[1] - self.scale[0]) * draw(key, number)
            ratio = math.exp(low + (high - low) * draw(key, number + 1))
            area = float(height) * width * share
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            # Some areas and ratios do not fit into a long image. As in torchvision, they are then
            # drawn again, in at most ATTEMPTS attempts.
            if 1 <= w <= width and 1 <= h <= height:
                top = int(draw(key, number + 2) * (height - h + 1))
                left = int(draw(key, number + 3) * (width - w + 1))
                return self._cut(top, h, left, w)
        return self._cut_middle(height, width)

    def _cut_middle(self, height: int, width: int) -> Cut:
        """The largest part in the middle of the image with an allowed width / height."""
        ratio = width / height
        low, high = self.ratio
        h = min(height, max(1, round(width / low))) if ratio < low else height
        w = min(width, max(1, round(height * high))) if ratio > high else width
        return self._cut((height - h) // 2, h, (width - w) // 2, w)

    def _cut(self, top: int, h: int, left: int, w: int) -> Cut:
        """The part of height `h` and width `w` at (top, left), resized to a sample."""
        height, width = self.height_width
        return Cut(Axis(top, h, height, 0, height), Axis(left, w, width, 0, width))


@dataclass(frozen=True)
class CenterCrop:
    """The middle of each resized image: torchvision's Resize(resize) and CenterCrop(size).

    Args:
        size: (height, width) of the samples in pixels, or one number for both.
        resize: pixels to which the image's shorter side is resized first; at least `size`.

    Raises ValueError for an invalid argument.
    """

    size: Size
    resize: int

    def __post_init__(self) -> None:
        check_size(self.size)
        if not max(self.height_width) <= self.resize <= MAX_SIDE:
            least = max(self.height_width)
            raise ValueError(f"resize={self.resize}: allowed are {least} (size) to {MAX_SIDE}")

    @property
    def height_width(self) -> tuple[int, int]:
        """The height and width of a sample."""
        return as_pair(self.size)

    @property
    def native(self) -> tuple:
        """The first items of the native decoder's tuple `crop`."""
        return CENTER_CROP, self.height_width, (0.0, 0.0), (0.0, 0.0), self.resize

    def cut(self, key: int, height: int, width: int) -> Cut:  # noqa: ARG002
        """The middle of the resized image, for which no random numbers are drawn."""
        shorter = min(height, width)
        num_rows, num_columns = self.height_width
        rows = _middle(height, self.resize * height // shorter, num_rows)
        columns = _middle(width, self.resize * width // shorter, num_columns)
        return Cut(rows, columns)


def draw_cut(crop: Crop, flip: float, key: int, height: int, width: int) -> Cut:
    """The part of an image that is drawn with the key, flipped with the probability `flip`."""
    cut = crop.cut(key, height, width)
    return Cut(cut.rows, cut.columns, draw(key, FLIP_DRAW) < flip)


def draw(key: int, number: int) -> float:
    """A random number in [0, 1): output `number` of splitmix64, with the key as its seed."""
    return (splitmix64(key, number) >> 11) * 2.0**-53


def check_size(size: Size) -> None:
    """Raise ValueError unless each side is a whole number from 1 to MAX_SIDE."""
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
        raise ValueError(f"size={size}: allowed are (height, width) or one side, 1 to {MAX_SIDE}")


def as_pair(size: Size) -> tuple[int, int]:
    """The size as (height, width)."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _middle(length: int, resized: int, count: int) -> Axis:
    """The cut of the middle `count` pixels of an axis that is resized as a whole."""
    # round() rounds halves to even, as nearbyint() does in cut.c, and as torchvision does.
    return Axis(0, length, resized, round((resized - count) / 2), count)
