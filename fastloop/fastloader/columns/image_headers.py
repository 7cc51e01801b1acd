"""The headers of encoded images, read without decoding: encoding, components, orientation.

A JPEG begins with segments, and PNG and WebP files consist of chunks. A generator for each format
yields these parts, and the other functions pick the parts that they need. The sections in comments
are of these standards: T.81 (ITU-T T.81, JPEG), PNG (W3C, Portable Network Graphics, third
edition), RFC 9649 (WebP) and Exif 2.3.

The orientation is read from the EXIF data; native/jpeg/orientation.c reads the same number from a
JPEG. Only the first directory of the EXIF data is read, and only once. Reading is therefore always
fast, whatever the EXIF data refer to.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np

Encoded = bytes | bytearray | memoryview
"""The bytes of an image file."""
Encoding = Literal["JPEG", "CMYK JPEG", "PNG", "WebP"]

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Second bytes of the markers that begin a JPEG's frame header (T.81, table B.1). The three that
are left out begin tables (C4, CC) or are reserved for extensions (C8)."""
FRAME_HEADER_NBYTES = 10
"""Bytes of a JPEG's frame header up to its number of components, the marker included: marker (2),
length (2), bits per channel (1), height (2), width (2), number of components (1) (T.81 B.2.2)."""
APP1 = 0xE1
"""Second byte of the marker that begins a segment with EXIF data (Exif 2.3, 4.7.2)."""
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
"""Second bytes of the JPEG markers that stand alone, without a segment: TEM, and restart markers
(T.81 B.1.1.3)."""
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
        # The bit depth is at offset 24: after the signature (8 bytes), the length and the type of
        # the first chunk, IHDR (8), the width (4) and the height (4) (PNG 11.2.2).
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
    for kind, content, checksum in _png_chunks(memoryview(data)):
        # The checksum covers the type and the content, but not the length (PNG 5.3).
        if zlib.crc32(content, zlib.crc32(kind)).to_bytes(4, "big") != checksum:
            return False
        if kind == b"IEND":
            return True
    return False


def is_for_pillow(data: Encoded) -> bool:
    """True for a PNG that Pillow reads in place of other libraries, which may make other pixels.

    These are animated files, because some libraries draw the first frame differently, and files
    with compressed texts, which Pillow refuses if a text would take too much memory.
    """
    view = memoryview(data)
    if bytes(view[: len(PNG_MAGIC)]) != PNG_MAGIC:
        return False
    return any(kind in (b"acTL", b"zTXt", b"iTXt") for kind, _, _ in _png_chunks(view))


def is_webp(start: bytes) -> bool:
    """True if these are the first twelve bytes of a WebP file."""
    return start[:4] == b"RIFF" and start[8:12] == b"WEBP"


def _check_bits(data: Encoded, frame: int) -> None:
    if frame and data[frame + 4] != 8:
        raise ValueError(f"a JPEG of {data[frame + 4]} bits per channel; {ALLOWED_BITS}")


def _frame(data: Encoded) -> tuple[int, int]:
    """(number of colour components, offset of the frame header) of a JPEG; (0, 0) without one."""
    view = memoryview(data)
    # No marker without a segment may precede the frame header (T.81 B.2.1), so none is skipped.
    for marker, start, _ in _jpeg_segments(view):
        if marker in START_OF_FRAME and start + FRAME_HEADER_NBYTES <= len(view):
            return view[start + FRAME_HEADER_NBYTES - 1], start
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
        return _read_tiff(_exif_of_png(view))
    if is_webp(start):
        return _read_tiff(_exif_of_webp(view))
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
    # libjpeg skips misplaced markers without a segment, so EXIF data after them is read, too.
    for marker, _, content in _jpeg_segments(view, WITHOUT_LENGTH):
        if marker in ENDS:
            break
        if marker == APP1 and content[: len(EXIF)] == EXIF:
            return content[len(EXIF) :]
    return view[:0]


def _exif_of_png(view: memoryview) -> memoryview:
    """The content of the first eXIf chunk (PNG 11.3.5.5); empty if there is none, or if it is cut
    off."""
    contents = (content for kind, content, _ in _png_chunks(view) if kind == b"eXIf")
    return next(contents, view[:0])


def _exif_of_webp(view: memoryview) -> memoryview:
    """The EXIF data of the first EXIF chunk (RFC 9649, 2.7.1.5), without the bytes EXIF with which
    some programs begin it; empty if there is none, or if the chunk is cut off."""
    contents = (content for kind, content in _webp_chunks(view) if kind == b"EXIF")
    exif = next(contents, view[:0])
    return exif[len(EXIF) :] if exif[: len(EXIF)] == EXIF else exif


def _jpeg_segments(
    view: memoryview, skipped: Collection[int] = ()
) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (second byte of the marker, offset of the marker, content) of each segment of a JPEG.

    The content is empty if the segment is cut off. The header of a scan is a segment, but its data
    are not, so the segments usually end with the header of the first scan.

    skipped: second bytes of the markers that are skipped because no segment follows them.
    """
    start = 2  # after the marker of the start of the image
    while start + 4 <= len(view) and view[start] == 0xFF:
        marker = view[start + 1]
        # Any number of fill bytes FF may precede a marker (T.81 B.1.1.2).
        if marker == 0xFF or marker in skipped:
            start += 1 if marker == 0xFF else 2
            continue
        # The length includes its own two bytes (T.81 B.1.1.4).
        end = start + 2 + int.from_bytes(view[start + 2 : start + 4], "big")
        yield marker, start, _slice_whole(view, start + 4, end)
        start = end


def _png_chunks(view: memoryview) -> Iterator[tuple[bytes, memoryview, memoryview]]:
    """Yield (type, content, checksum) of each chunk of a PNG file (PNG 5.3).

    The content is empty if it is cut off. The checksum then has fewer than its four bytes.
    """
    start = len(PNG_MAGIC)
    while start + 8 <= len(view):
        end = start + 8 + int.from_bytes(view[start : start + 4], "big")
        content = _slice_whole(view, start + 8, end)
        yield bytes(view[start + 4 : start + 8]), content, view[end : end + 4]
        start = end + 4


def _webp_chunks(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield (type, content) of each chunk of a WebP file (RFC 9649, 2.3).

    The content is empty if it is cut off.
    """
    start = 12  # after the file's header (RFC 9649, 2.4)
    while start + 8 <= len(view):
        length = int.from_bytes(view[start + 4 : start + 8], "little")
        end = start + 8 + length
        yield bytes(view[start : start + 4]), _slice_whole(view, start + 8, end)
        # A chunk of odd length is padded by a byte (RFC 9649, 2.3).
        start = end + length % 2


def _slice_whole(view: memoryview, start: int, end: int) -> memoryview:
    """The bytes from `start` to `end`; empty if the file ends before `end`."""
    return view[start:end] if end <= len(view) else view[:0]
