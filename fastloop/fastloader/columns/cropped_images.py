"""Crops of encoded images as samples, decoded natively if a file allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fastloop.core.seeds import splitmix64
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.crops import Crop, Cut, draw_cut
from fastloop.fastloader.columns.decoders import choose_decoder, decode_any, load_codec
from fastloop.fastloader.columns.encoded_images import EncodedImages, ImageFiles
from fastloop.fastloader.columns.image_headers import Encoded, encoding_of
from fastloop.fastloader.columns.jpeg import INSTALL, has_jpeg, load_jpeg
from fastloop.fastloader.columns.orientation import read_orientation, turn_pixels

DTYPES = torch.uint8, torch.float32, torch.bfloat16
"""Dtypes of the samples, by the native decoder's numbers."""
Statistics = tuple[Sequence[float], Sequence[float]]
MAX_PIXELS = 2 * 89_478_485
"""The most pixels of a decoded or resized image: Pillow's own limit."""
NATIVE = "native"
"""The decoder of the extension `_jpeg`; the others, in decoders.py, are libraries."""


def choose_crop_decoder(decoder: str | None) -> str:
    """Return `decoder`, or for None the fastest one that is there.

    Raises ValueError for an unknown name, ImportError if the decoder is not installed.
    """
    if decoder == NATIVE and not has_jpeg():
        raise ImportError(f"decoder={NATIVE!r} is not built: {INSTALL}")
    if decoder == NATIVE or (decoder is None and has_jpeg()):
        return NATIVE
    return choose_decoder(decoder)


@dataclass(frozen=True)
class PixelFormat:
    """Dtype and layout of pixels: value * factor + offset of each channel, values of 0 to 255."""

    dtype: torch.dtype
    channels_last: bool
    factor: tuple[float, ...] = (1.0, 1.0, 1.0)
    offset: tuple[float, ...] = (0.0, 0.0, 0.0)

    @property
    def native(self) -> tuple:
        """The native decoder's arguments."""
        return DTYPES.index(self.dtype), self.channels_last, self.factor, self.offset

    def write(self, pixels: np.ndarray, sample: torch.Tensor) -> None:
        """Write (height, width, 3) uint8 pixels to a (3, height, width) sample."""
        values = torch.from_numpy(pixels).permute(2, 0, 1)
        if self.dtype != torch.uint8:
            factor, offset = torch.tensor(self.factor), torch.tensor(self.offset)
            values = values.float().mul_(factor.view(3, 1, 1)).add_(offset.view(3, 1, 1))
        sample.copy_(values)


def pixel_format(
    normalize: Statistics | None, dtype: torch.dtype | None, layout: Literal["CHW", "channels_last"]
) -> PixelFormat:
    """The format for these settings of `Images`. Raises ValueError if one is invalid."""
    if dtype is None:
        dtype = torch.uint8 if normalize is None else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: allowed are {', '.join(map(str, DTYPES))}")
    if layout not in ("CHW", "channels_last"):
        raise ValueError(f"layout={layout!r}: allowed are 'CHW' and 'channels_last'")
    is_last = layout == "channels_last"
    if dtype == torch.uint8:
        if normalize is not None:
            raise ValueError("normalize with dtype=torch.uint8: normalized samples are floats")
        return PixelFormat(dtype, is_last)
    mean, std = ((0.0,) * 3, (1.0,) * 3) if normalize is None else normalize
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        allowed = "(mean, std), three numbers each, and every std above 0"
        raise ValueError(f"normalize={normalize}: allowed are {allowed}")
    factor = tuple(1 / (255 * float(value)) for value in std)
    offset = tuple(-float(m) / float(s) for m, s in zip(mean, std, strict=True))
    return PixelFormat(dtype, is_last, factor, offset)


@dataclass(frozen=True, eq=False)
class CroppedImages:
    """Samples of shape (3, height, width), cut out of encoded images of any size and resized."""

    images: EncodedImages
    crop: Crop
    flip: float
    """Probability that a sample is flipped horizontally."""
    format: PixelFormat
    decoder: str
    """ "native", or a library of decoders.py."""
    seed: int = 0
    """The epoch's seed. A sample draws from a generator that begins with this and the sample's
    index."""
    apply_exif_orientation: bool = False

    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.images)

    def with_seed(self, seed: int) -> CroppedImages:
        """The column of an epoch with this seed."""
        return replace(self, seed=seed)

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the samples."""
        shape = 3, *self.crop.height_width
        return SampleSpec(self.format.dtype, shape, self.format.channels_last)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the samples at `indices`: natively, and those that are left, by a library."""
        keys = splitmix64(indices, self.seed)
        left = range(len(indices))
        if self.decoder == NATIVE:
            left = np.flatnonzero(self._make_natively(indices, keys, out) == 0).tolist()
        samples = self.spec.view_tensor(out)
        for place in left:
            index = int(indices[place])
            pixels = self._decode(index)
            # The same key as natively: it does not show which decoder has made a sample.
            cut = draw_cut(self.crop, self.flip, int(keys[place]), *pixels.shape[:2])
            self._check(index, cut)
            self.format.write(cut_pixels(pixels, cut), samples[place])

    def _make_natively(self, indices: np.ndarray, keys: np.ndarray, out: np.ndarray) -> np.ndarray:
        """uint8: 1 for each sample that the native decoder has made."""
        are_files = isinstance(self.images, ImageFiles)
        encoded = tuple(self.images.inputs(indices.tolist()))
        jpeg = load_jpeg()
        crop = *self.crop.native, self.flip, self.apply_exif_orientation
        assert jpeg is not None
        states = jpeg.make_samples(encoded, are_files, keys, crop, self.format.native, out)
        return np.frombuffer(states, np.uint8)

    def _decode(self, index: int) -> np.ndarray:
        """(height, width, 3) uint8, as the image is shown."""
        data = self.images.read(index)
        try:
            pixels = self._read_pixels(data)
        except ValueError as error:
            raise ValueError(f"{self.images.name(index)}: {error}") from error
        if self.apply_exif_orientation:
            return turn_pixels(pixels, read_orientation(data))
        return pixels

    def _read_pixels(self, data: Encoded) -> np.ndarray:
        """The pixels of an image; by Pillow if the decoder's library does not read it."""
        if self.decoder not in (NATIVE, "pil"):
            try:
                return load_codec(self.decoder).decode(data, encoding_of(data))
            except ValueError:
                # Pillow reads more kinds of files, or its error says what is wrong with this one.
                pass
        return decode_any(data)

    def _check(self, index: int, cut: Cut) -> None:
        # A long, thin image would be resized to an enormous one, of which only the middle is
        # needed.
        if cut.rows.resized * cut.columns.resized > MAX_PIXELS:
            size = f"{cut.rows.resized} x {cut.columns.resized}"
            raise ValueError(f"{self.images.name(index)}: resized to {size}, it is too large")


def cut_pixels(pixels: np.ndarray, cut: Cut) -> np.ndarray:
    """The sample of a (height, width, 3) uint8 image, resized by Pillow."""
    pil: Any = import_module("PIL.Image")
    rows, columns = cut.rows, cut.columns
    part = pixels[rows.start : rows.start + rows.length]
    part = part[:, columns.start : columns.start + columns.length]
    image = pil.fromarray(np.ascontiguousarray(part))
    image = image.resize((columns.resized, rows.resized), pil.Resampling.BILINEAR)
    left, top = columns.first, rows.first
    image = image.crop((left, top, left + columns.count, top + rows.count))
    if cut.is_flipped:
        image = image.transpose(pil.Transpose.FLIP_LEFT_RIGHT)
    return np.array(image)
