"""Encodings by which write_store stores image files: unchanged, with restart markers, or smaller.

The interval between two restart markers of a JPEG (T.81 B.2.4.4 and E.2.4) can be decoded
independently of the rest of the scan. A decoder can therefore skip intervals that a crop does not
need.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from fastloop.fastloader.columns.decoders import BROKEN, INSTALL_JPEG, load_jpeg
from fastloop.fastloader.columns.image_headers import (
    ORIENTATION,
    Encoded,
    encoding_of,
    read_orientation,
)

StoredAs = Literal["kept", "transcoded", "resized"]
Encode = Callable[[Encoded], tuple[Encoded, StoredAs]]
"""Bytes of a file -> bytes that are stored, and how these were made."""
MAX_EXIF_NBYTES = 65_533
"""The most EXIF data that Pillow writes: the length of a segment has 16 bits and counts its own two
bytes (T.81 B.1.1.4)."""


@dataclass(frozen=True)
class LongestSide:
    """An encoding for write_store that resizes JPEG images to a longest side of `pixels`.

    Images with a longer side above `pixels` are resized by Pillow's Lanczos filter.

    Args:
        pixels: length of the longer side, 1 to 65535; the aspect ratio is kept.
        quality: Pillow's quality of the JPEG that is stored, 1 to 100.

    Raises ValueError for other numbers.

    >>> write_store(ImageFolder("photos"), "outputs/photos", images=LongestSide(512))
    """

    pixels: int
    quality: int = 90

    def __post_init__(self) -> None:
        # T.81 B.2.2: the sides of a JPEG have 16 bits.
        for name, most in (("pixels", 65_535), ("quality", 100)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name}={value!r}: allowed are 1 to {most}")


ImageEncoding = Literal["as_is", "jpeg"] | LongestSide


def open_encoding(images: ImageEncoding) -> Encode:
    """The function from the bytes of a file to the bytes that are stored.

    Raises ValueError for an unknown encoding, ImportError if the extension is missing.
    """
    if images == "as_is":
        return _keep
    # The message is that of write_store, which also allows None, for data that is not encoded.
    if images != "jpeg" and not isinstance(images, LongestSide):
        raise ValueError(f"images={images!r}: allowed are 'as_is', 'jpeg', LongestSide and None")
    if load_jpeg() is None:
        raise ImportError(f"images={images!r} needs the native decoder of JPEG: {INSTALL_JPEG}")
    return _transcode if images == "jpeg" else partial(_resize, images)


def _keep(data: Encoded) -> tuple[Encoded, StoredAs]:
    return data, "kept"


def _transcode(data: Encoded) -> tuple[Encoded, StoredAs]:
    """The image with restart markers and the same coefficients; the file itself if libjpeg can't
    transcode it."""
    jpeg: Any = load_jpeg()
    transcoded = jpeg.transcode(data)
    return (data, "kept") if transcoded is None else (transcoded, "transcoded")


def _resize(side: LongestSide, data: Encoded) -> tuple[Encoded, StoredAs]:
    """A smaller JPEG with restart markers. A JPEG that is small enough is transcoded; other files,
    and JPEGs that are broken or neither RGB nor grey, are kept."""
    pil: Any = import_module("PIL.Image")
    try:
        if encoding_of(data) != "JPEG":
            return data, "kept"
        with pil.open(io.BytesIO(data)) as image:
            if max(image.size) <= side.pixels:
                return _transcode(data)
            size = [max(1, round(length * side.pixels / max(image.size))) for length in image.size]
            smaller = image.resize(size, pil.Resampling.LANCZOS)
            headers = _headers_of(image, data)
    except (*BROKEN, pil.DecompressionBombError):
        return data, "kept"
    file = io.BytesIO()
    smaller.save(file, "JPEG", quality=side.quality, **headers)
    return _transcode(file.getvalue())[0], "resized"


def _headers_of(image: Any, data: Encoded) -> dict[str, Any]:
    """Headers with which a viewer shows the smaller image like the original."""
    # Pillow can't write EXIF data that spans several segments. Only the orientation is kept then;
    # without it the image would be shown turned.
    headers = {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info}
    if len(headers.get("exif", b"")) > MAX_EXIF_NBYTES:
        headers["exif"] = import_module("PIL.Image").Exif()
        headers["exif"][ORIENTATION] = read_orientation(data)
    return headers
