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
"""The way in which the stored bytes of an image were made. transcoded: restart markers were
added."""
Encode = Callable[[Encoded], tuple[Encoded, StoredAs]]
"""Bytes of a file -> bytes that are stored, and the way in which these were made."""
MAX_EXIF_NBYTES = 65_533
"""Maximum number of bytes of EXIF data that Pillow writes. The length of a segment has 16 bits, and
includes its own two bytes (T.81 B.1.1.4)."""


@dataclass(frozen=True)
class LongestSide:
    """An encoding for write_store that makes large JPEG images smaller.

    If the longer side of an image is above `pixels`, the image is resized to a longer side of
    `pixels` by Pillow's Lanczos filter.

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

    Raises ValueError for an unknown encoding, and ImportError if the native decoder of JPEG, which
    adds restart markers, is missing.
    """
    if images == "as_is":
        return _keep
    # The user has called write_store, which also allows None, for data that is not encoded. So the
    # message lists None.
    if images != "jpeg" and not isinstance(images, LongestSide):
        raise ValueError(f"images={images!r}: allowed are 'as_is', 'jpeg', LongestSide and None")
    if load_jpeg() is None:
        raise ImportError(f"images={images!r} needs the native decoder of JPEG: {INSTALL_JPEG}")
    return _transcode if images == "jpeg" else partial(_resize, images)


def _keep(data: Encoded) -> tuple[Encoded, StoredAs]:
    """The file, unchanged."""
    return data, "kept"


def _transcode(data: Encoded) -> tuple[Encoded, StoredAs]:
    """The image with restart markers and the same coefficients.

    The file is kept if libjpeg can't read it, if it is neither RGB nor grey, or if the pixels would
    differ.
    """
    jpeg: Any = load_jpeg()
    transcoded = jpeg.transcode(data)
    return (data, "kept") if transcoded is None else (transcoded, "transcoded")


def _resize(side: LongestSide, data: Encoded) -> tuple[Encoded, StoredAs]:
    """A smaller JPEG with restart markers.

    A JPEG that is small enough is only transcoded. Other files are kept, and so are JPEGs that are
    broken, or neither RGB nor grey.
    """
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
    """The original's EXIF data and colour profile, as arguments of Pillow's `save`.

    With these headers, a viewer shows the smaller image like the original.
    """
    # Pillow can't write EXIF data that spans several segments. Then only the orientation is kept,
    # because a viewer would show the image turned without the orientation.
    headers = {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info}
    if len(headers.get("exif", b"")) > MAX_EXIF_NBYTES:
        headers["exif"] = import_module("PIL.Image").Exif()
        headers["exif"][ORIENTATION] = read_orientation(data)
    return headers
