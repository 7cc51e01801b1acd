"""Encoded images as a column: the loader's threads decode each into its row of the batch.

Whole images are decoded by a library and resized; for crops see cropped_images.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fastloop.fastloader.columns.column import Column, SampleSpec
from fastloop.fastloader.columns.cropped_images import (
    NATIVE,
    CroppedImages,
    Statistics,
    choose_crop_decoder,
    pixel_format,
)
from fastloop.fastloader.columns.crops import Crop
from fastloop.fastloader.columns.decoders import choose_decoder, load_codec
from fastloop.fastloader.columns.encoded_images import EncodedImages, open_images
from fastloop.fastloader.columns.image_headers import encoding_of
from fastloop.fastloader.columns.jpeg import describe_native_decoder
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


class Images:
    """RGB samples decoded from encoded images, whole or cropped.

    Whole images are uint8 of shape (height, width, 3). With `crop`, samples of shape (3, height,
    width) are cut out of JPEG images natively: only the part that is needed is decoded, resized
    with Pillow's antialiased bilinear filter, flipped and normalized, in one pass and without the
    interpreter's lock. A sample's draws depend on the loader's seed, the epoch and its index alone.

    Args:
        encoded: paths of files, their bytes, the images that open_store opens of
            `write_store(..., images=...)`, or (one uint8 array of all of them, offsets): image i is
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

    Crops: Pillow decodes files of other kinds that it reads (CMYK, PNG, also of 16 bits, WebP). A
    file that is broken below the crop's part, or between restart markers beside it, but has its
    end marker, is not noticed. Colour profiles are ignored, as Pillow's `open` ignores them.

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
            library = choose_decoder(decoder)
            self._column = WholeImages(
                images, size, channels_first, antialias, library, apply_exif_orientation
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
        """The decoder's name; that of the native one has a reason if it is slower here."""
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
