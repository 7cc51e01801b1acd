"""Encoded images as a column: the loader's threads decode each into its row of the batch.

Whole images are decoded by a library and resized. Crops are decoded natively if a file allows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fastloop.core.seeds import random_bits
from fastloop.fastloader.columns.column import Column, SampleSpec
from fastloop.fastloader.columns.crops import Crop, Cut, draw_cut
from fastloop.fastloader.columns.decoders import (
    INSTALL_JPEG,
    choose_decoder,
    decode_any,
    describe_native_decoder,
    has_jpeg,
    load_codec,
    load_jpeg,
)
from fastloop.fastloader.columns.encoded_images import EncodedImages, ImageFiles, open_images
from fastloop.fastloader.columns.image_headers import (
    Encoded,
    encoding_of,
    read_orientation,
    turn_pixels,
)
from fastloop.fastloader.columns.pixel_format import PixelFormat, Statistics, pixel_format

MAX_PIXELS = 2 * 89_478_485
"""Maximum number of pixels of a decoded or resized image: Pillow's own limit."""
NATIVE = "native"
"""The decoder of the extension `_jpeg`; the others, in decoders.py, are libraries."""


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
        # The resizing libraries reject arrays with negative strides, so the view is copied.
        return np.ascontiguousarray(turn_pixels(pixels, read_orientation(data)))


class Images:
    """RGB samples decoded from encoded images, whole or cropped.

    Whole images are uint8 of shape (height, width, 3). With `crop`, samples of shape (3, height,
    width) are cut out of JPEG images natively: only the part that is needed is decoded, resized
    with Pillow's antialiased bilinear filter, flipped and normalized, in one pass and without the
    interpreter's lock. A sample's draws depend only on the loader's seed, the epoch and its index.

    Args:
        encoded: paths of files, their bytes, the images of a store, as `open_store` returns them,
            or (one uint8 array of all of them, offsets): image i is
            array[offsets[i]:offsets[i + 1]].
        size: (height, width); each whole image is resized to it, ignoring its aspect ratio. None:
            all images must have the size of the first.
        channels_first: deliver whole images as (3, height, width) in torch's memory_format
            channels_last.
        antialias: average the pixels when a whole image is made smaller.
        decoder: "simplejpeg" (OpenCV decodes PNG and WebP files, and resizes), "torchvision" or
            "pil", and "native" for crops; None: the first that is installed, which the attribute
            `decoder` then names.
        crop: `RandomResizedCrop` or `CenterCrop`.
        flip: the probability that a crop is flipped horizontally.
        normalize: (mean, std), three numbers each: crops are (image / 255 - mean) / std.
        dtype: dtype of crops: torch.uint8, torch.float32 or torch.bfloat16; None: uint8, or float32
            if they are normalized. Floats that are not normalized are 0 to 1.
        layout: layout of a crop in memory: "CHW" (three planes) or "channels_last".
        apply_exif_orientation: turn and mirror each image as the EXIF data of its JPEG, PNG or WebP
            file says, before it is cropped or resized; False: pixels are as they are stored, as
            `PIL.Image.open` and torchvision's ImageFolder deliver them.

    Whole images: all decoders read JPEG, PNG and WebP files of 8 bits per channel, and convert
    other colour spaces as Pillow's `convert("RGB")` does. Their resizes agree within 1 of 255,
    except with antialias: OpenCV's is INTER_AREA, torchvision's and Pillow's are bilinear.
    "simplejpeg" calls cv2.setNumThreads(0), which affects the whole process.

    Crops: Pillow decodes files of other kinds that it reads (CMYK, PNG, also of 16 bits, WebP).
    Damage outside the decoded part (below the crop, or between restart markers beside it) is not
    noticed if the file has its end marker. Colour profiles are ignored, as Pillow's `open` ignores
    them.

    Raises ValueError for an invalid argument and ImportError if the decoder's library is missing;
    while iterating, OSError or ValueError that names the file or the image's number.

    >>> crop = RandomResizedCrop(224)
    >>> images = Images(paths, crop=crop, flip=0.5, normalize=([0.485, 0.456, 0.406], [0.225] * 3))
    >>> images.spec
    SampleSpec(dtype=torch.float32, shape=(3, 224, 224), channels_last=False)
    >>> loader = FastLoader((images, labels), batch_size=64, shuffle=True)
    """

    slow: ClassVar[bool] = True
    """Decoding costs more than a copy, see `Column`."""

    def __init__(  # noqa: PLR0913 - settings of whole images and of crops
        self,
        encoded: Any,
        size: tuple[int, int] | None = None,
        *,
        channels_first: bool = False,
        antialias: bool = False,
        decoder: str | None = None,
        crop: Crop | None = None,
        flip: float = 0.0,
        normalize: Statistics | None = None,
        dtype: torch.dtype | None = None,
        layout: Literal["CHW", "channels_last"] = "CHW",
        apply_exif_orientation: bool = False,
    ) -> None:
        images = open_images(encoded)
        of_crops = flip or normalize or dtype or layout != "CHW" or decoder == NATIVE
        # A setting that would have no effect is an error, and not ignored.
        if crop is None and of_crops:
            names = 'flip, normalize, dtype, layout and decoder="native"'
            raise ValueError(f"{names} are settings of crops: crop=None allows none of them")
        if crop is None:
            if size is not None and (len(size) != 2 or min(size) < 1):
                raise ValueError(f"size={size}: allowed are (height, width) of 1 or more, and None")
            self._column = WholeImages(
                images=images,
                size=size,
                channels_first=channels_first,
                antialias=antialias,
                decoder=choose_decoder(decoder),
                apply_exif_orientation=apply_exif_orientation,
            )
            return
        if size is not None or channels_first or antialias:
            names = "size, channels_first and antialias"
            raise ValueError(f"{names} are settings of whole images: crop={crop} has its own size")
        if not 0 <= flip <= 1:
            raise ValueError(f"flip={flip}: allowed are 0 to 1")
        pixels = pixel_format(normalize, dtype, layout)
        library = choose_crop_decoder(decoder)
        self._column = CroppedImages(
            images, crop, flip, pixels, library, apply_exif_orientation=apply_exif_orientation
        )

    def __repr__(self) -> str:
        column = self._column
        if isinstance(column, CroppedImages):
            settings = f"crop={column.crop}, flip={column.flip}, dtype={self.spec.dtype}"
        else:
            settings = f"size={column.size}, channels_first={column.channels_first}"
            settings += f", antialias={column.antialias}"
        if column.apply_exif_orientation:
            settings += ", apply_exif_orientation=True"
        return f"Images({len(self)} images, {settings}, decoder={self.decoder!r})"

    def __len__(self) -> int:
        return len(self._column)

    @property
    def decoder(self) -> str:
        """The decoder's name; "native" is followed by a reason if the decoder is slower here."""
        decoder = self._column.decoder
        return describe_native_decoder() if decoder == NATIVE else decoder

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the samples; whole images without a size have the size of the first
        one.
        """
        return self._column.spec

    def with_seed(self, seed: int) -> Column:
        """The column of an epoch with this seed."""
        column = self._column
        return column.with_seed(seed) if isinstance(column, CroppedImages) else column

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode the images at `indices` to `out`, one after the other."""
        self._column.fill(indices, out)


def choose_crop_decoder(decoder: str | None) -> str:
    """Return `decoder`, or for None the fastest decoder of crops that is installed.

    Raises ValueError for an unknown name, ImportError if the decoder is not installed.
    """
    if decoder == NATIVE and not has_jpeg():
        raise ImportError(f"decoder={NATIVE!r} is not built: {INSTALL_JPEG}")
    if decoder == NATIVE or (decoder is None and has_jpeg()):
        return NATIVE
    return choose_decoder(decoder)


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
        height, width = self.crop.height_width
        return SampleSpec(self.format.dtype, (3, height, width), self.format.channels_last)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the samples at `indices` to `out`: natively if possible, else by a library."""
        keys = random_bits(indices, self.seed)
        left = range(len(indices))
        if self.decoder == NATIVE:
            left = np.flatnonzero(self._make_natively(indices, keys, out) == 0).tolist()
        samples = self.spec.view_tensor(out)
        for place in left:
            index = int(indices[place])
            pixels = self._decode(index)
            # The native decoder has the same keys, so the cut does not depend on the decoder.
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
                # Pillow reads more kinds of files. If it can't read this one, its error says why.
                pass
        return decode_any(data)

    def _check(self, index: int, cut: Cut) -> None:
        # A long, thin image would be resized to an enormous one, although only its middle is
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
