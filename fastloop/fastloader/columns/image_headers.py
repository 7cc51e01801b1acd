"""Checks of encoded images without decoding: encoding, colour components, completeness."""

from __future__ import annotations

import zlib
from typing import Literal

Encoded = bytes | bytearray | memoryview
"""The bytes of an image file."""
Encoding = Literal["JPEG", "CMYK JPEG", "PNG", "WebP"]

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Second bytes of the markers that begin a JPEG's frame header (ITU-T T.81, table B.1). The others
of this range are tables (C4, CC) and an extension (C8)."""
ALLOWED_BITS = "only 8 bits are supported"


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
    # Searched from the frame on: a thumbnail in the header has its own end marker.
    return data.rfind(b"\xff\xd9", _frame(data)[1]) > 0


def is_whole_png(data: Encoded) -> bool:
    """True if all chunks of a PNG file, up to the end chunk, have correct checksums."""
    view, start = memoryview(data), len(PNG_MAGIC)
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
    """True for a PNG from which libraries make different pixels, so that Pillow reads it for all of
    them.

    These are animated ones, as some libraries draw the first frame otherwise, and those with
    compressed texts, which Pillow refuses if they become larger than memory should hold.
    """
    view, start = memoryview(data), len(PNG_MAGIC)
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
    view, start = memoryview(data), 2
    last = len(view) - 10
    while start <= last and view[start] == 0xFF:
        marker = view[start + 1]
        if marker in START_OF_FRAME:
            return view[start + 9], start
        # Any number of fill bytes may precede a marker (T.81 B.1.1.2).
        start += 1 if marker == 0xFF else 2 + (view[start + 2] << 8) + view[start + 3]
    return 0, 0
