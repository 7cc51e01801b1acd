"""The orientation that the EXIF data of an image file states, and pixels turned by it.

native/jpeg/orientation.c reads the same from a JPEG. Only the first directory of the EXIF data is
read, and only once: so no EXIF data takes long, whatever it refers to.
"""

from __future__ import annotations

import struct

import numpy as np

from fastloop.fastloader.columns.image_headers import (
    JPEG_MAGIC,
    PNG_MAGIC,
    Encoded,
    is_webp,
)

EXIF = b"Exif\0\0"
"""The first bytes of the EXIF data in a JPEG file, and in some WebP files."""
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
"""First bytes of EXIF data, which has the format of a TIFF file -> its byte order for struct."""
HEADER_NBYTES, ENTRY_NBYTES = 8, 12
ORIENTATION = 0x0112
"""The number of the tag (Exif 2.3, 4.6.4)."""
NUMBER_TYPES = {3: "H", 4: "I"}
"""Formats for struct of an entry's types: a short or a long number."""
WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
"""Second bytes of the JPEG markers that no segment follows: TEM, and restart markers."""
ENDS = {0xD9, 0xDA}
"""Second bytes of the markers after which no EXIF data follows: end of image, and start of scan."""


def read_orientation(data: Encoded) -> int:
    """1 to 8, as EXIF numbers the orientations of JPEG, PNG and WebP files.

    1 is the orientation in which the pixels are stored. It is returned if the file states no other
    orientation that can be read.
    """
    view = memoryview(data)
    start = bytes(view[:12])
    if start.startswith(JPEG_MAGIC):
        return _read_tiff(_exif_of_jpeg(view))
    if start.startswith(PNG_MAGIC):
        return _read_tiff(_chunk_of_png(view, b"eXIf"))
    if is_webp(start):
        exif = _chunk_of_webp(view, b"EXIF")
        return _read_tiff(exif[len(EXIF) :] if exif[: len(EXIF)] == EXIF else exif)
    return 1


def turn_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """A view of (height, width, 3) pixels as they are shown in this orientation."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _read_tiff(block: memoryview) -> int:
    """The value of the first entry in the first directory that states an orientation."""
    order = BYTE_ORDERS.get(bytes(block[:4]))
    if order is None or len(block) < HEADER_NBYTES:
        return 1
    (start,) = struct.unpack_from(f"{order}I", block, 4)
    if start > len(block) - 2:
        return 1
    (count,) = struct.unpack_from(f"{order}H", block, start)
    last = len(block) - ENTRY_NBYTES
    for entry in range(start + 2, start + 2 + count * ENTRY_NBYTES, ENTRY_NBYTES):
        if entry > last:
            break
        tag, kind, length = struct.unpack_from(f"{order}HHI", block, entry)
        if tag == ORIENTATION:
            if length != 1 or kind not in NUMBER_TYPES:
                return 1
            (value,) = struct.unpack_from(order + NUMBER_TYPES[kind], block, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def _exif_of_jpeg(view: memoryview) -> memoryview:
    """The EXIF data after its first bytes, EXIF; empty if there is none before the first scan."""
    place = 2
    while place + 4 <= len(view) and view[place] == 0xFF:
        marker = view[place + 1]
        # Any number of fill bytes may precede a marker (T.81 B.1.1.2).
        if marker == 0xFF or marker in WITHOUT_LENGTH:
            place += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(view[place + 2 : place + 4], "big")
        end = place + 2 + length
        if marker in ENDS or length < 2 or end > len(view):
            break
        if marker == 0xE1 and view[place + 4 : min(place + 10, end)] == EXIF:
            return view[place + 10 : end]
        place = end
    return view[:0]


def _chunk_of_png(view: memoryview, kind: bytes) -> memoryview:
    """The first whole chunk of this kind; empty if there is none."""
    place = len(PNG_MAGIC)
    while place + 12 <= len(view):
        end = place + 8 + int.from_bytes(view[place : place + 4], "big")
        if view[place + 4 : place + 8] == kind:
            return view[place + 8 : end] if end <= len(view) else view[:0]
        place = end + 4  # after the checksum
    return view[:0]


def _chunk_of_webp(view: memoryview, kind: bytes) -> memoryview:
    """The first whole chunk of this kind; empty if there is none."""
    place = 12
    while place + 8 <= len(view):
        length = int.from_bytes(view[place + 4 : place + 8], "little")
        end = place + 8 + length
        if view[place : place + 4] == kind:
            return view[place + 8 : end] if end <= len(view) else view[:0]
        # A chunk of odd length is padded by a byte (RIFF).
        place = end + length % 2
    return view[:0]
