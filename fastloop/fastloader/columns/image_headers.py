"""The headers of encoded images, read without decoding: encoding, components, orientation.

The orientation is read from the EXIF data; native/jpeg/orientation.c reads the same number from a
JPEG. Only the first directory of the EXIF data is read, and only once. Reading is therefore always
fast, whatever the EXIF data refer to.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal

import numpy as np

Encoded = bytes | bytearray | memoryview
"""The bytes of an image file."""
Encoding = Literal["JPEG", "CMYK JPEG", "PNG", "WebP"]

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Second bytes of the markers that begin a JPEG's frame header (ITU-T T.81, table B.1). The others
of this range are tables (C4, CC) and an extension (C8)."""
ALLOWED_BITS = "only 8 bits are supported"

EXIF = b"Exif\0\0"
"""The first bytes of the EXIF data in a JPEG file, and in some WebP files."""
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
"""First bytes of EXIF data, which has the format of a TIFF file -> its byte order for struct."""
HEADER_NBYTES, ENTRY_NBYTES = 8, 12
"""Bytes of the head of EXIF data, and of an entry of a directory."""
ORIENTATION = 0x0112
"""The number of the orientation's tag (Exif 2.3, 4.6.4)."""
NUMBER_TYPES = {3: "H", 4: "I"}
"""Formats for struct of an entry's types: a short or a long number."""
WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
"""Second bytes of the JPEG markers that no segment follows: TEM, and restart markers."""
ENDS = {0xD9, 0xDA}
"""Second bytes of the markers after which no EXIF data follows: end of image, and start of scan."""


def encoding_of(data: Encoded) -> Encoding:
    """Return an image file's encoding; all decoders use it, so that all reject the same files.

    Raises ValueError for other formats, for JPEG files of other than 8 bits per channel, and for
    PNG files of 16, which some libraries truncate to 8 bits, some scale and some leave alone.
    """
    start = bytes(data[:25])
    if start.startswith(JPEG_MAGIC):
        components, frame = _frame(data)
        _check_bits(data, frame)
        return "CMYK JPEG" if components == 4 else "JPEG"
    if start.startswith(PNG_MAGIC):
        if start[24:] == b"\x10":
            raise ValueError(f"a PNG of 16 bits per channel; {ALLOWED_BITS}")
        return "PNG"
    if is_webp(start):
        return "WebP"
    raise ValueError("no JPEG, PNG or WebP file" if start else "the file is empty")


def check_bits_of_jpeg(data: Encoded) -> None:
    """Raise ValueError for a JPEG of other than 8 bits per channel."""
    if bytes(data[:3]) == JPEG_MAGIC:
        _check_bits(data, _frame(data)[1])


def has_end(data: bytes) -> bool:
    """True if a JPEG or PNG file has an end marker after its header, or a WebP file is as long as
    its header says."""
    if is_webp(data[:12]):
        return len(data) >= 8 + int.from_bytes(data[4:8], "little")
    if data.startswith(PNG_MAGIC):
        return data.rfind(b"IEND") > 0
    # The marker is searched from the frame on: a thumbnail in the header has its own end marker.
    return data.rfind(b"\xff\xd9", _frame(data)[1]) > 0


def is_whole_png(data: Encoded) -> bool:
    """True if all chunks of a PNG file, up to the end chunk, have correct checksums."""
    view = memoryview(data)
    start = len(PNG_MAGIC)
    while start + 12 <= len(view):
        end = start + 8 + int.from_bytes(view[start : start + 4], "big")
        stated = int.from_bytes(view[end : end + 4], "big")
        if zlib.crc32(view[start + 4 : end]) != stated:
            return False
        if view[start + 4 : start + 8] == b"IEND":
            return True
        start = end + 4
    return False


def is_for_pillow(data: Encoded) -> bool:
    """True for a PNG that Pillow reads in place of other libraries, which may make other pixels.

    These are animated files, because some libraries draw the first frame differently, and files
    with compressed texts, which Pillow refuses if a text would take too much memory.
    """
    view = memoryview(data)
    start = len(PNG_MAGIC)
    if bytes(view[:start]) != PNG_MAGIC:
        return False
    while start + 8 <= len(view):
        kind = bytes(view[start + 4 : start + 8])
        if kind in (b"acTL", b"zTXt", b"iTXt"):
            return True
        start += 12 + int.from_bytes(view[start : start + 4], "big")
    return False


def is_webp(start: bytes) -> bool:
    """True if these are the first twelve bytes of a WebP file."""
    return start[:4] == b"RIFF" and start[8:12] == b"WEBP"


def _check_bits(data: Encoded, frame: int) -> None:
    if frame and data[frame + 4] != 8:
        raise ValueError(f"a JPEG of {data[frame + 4]} bits per channel; {ALLOWED_BITS}")


def _frame(data: Encoded) -> tuple[int, int]:
    """(number of colour components, offset of the frame header) of a JPEG; (0, 0) without one."""
    view = memoryview(data)
    start = 2
    last = len(view) - 10
    while start <= last and view[start] == 0xFF:
        marker = view[start + 1]
        if marker in START_OF_FRAME:
            return view[start + 9], start
        # Any number of fill bytes may precede a marker (T.81 B.1.1.2).
        start += 1 if marker == 0xFF else 2 + (view[start + 2] << 8) + view[start + 3]
    return 0, 0


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
