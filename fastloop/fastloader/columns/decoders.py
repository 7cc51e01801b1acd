"""Decode image files: one function per library, each of which releases the GIL.

The functions decode_by_... take the bytes of a file and its encoding (image_headers.encoding_of).
They return (height, width, 3) uint8 RGB, which may be read-only or not contiguous. They convert
other colour spaces as Pillow's `convert("RGB")` does. Grey values are repeated. Transparency is
dropped and not blended. CMYK is assumed to follow Adobe's convention. Colour profiles and EXIF
orientation are ignored. The functions raise ValueError with a message of one line for a broken
file, and ImportError if the library is missing.

A Codec has the functions of one library with which `Images` decodes and resizes.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fastloop.core.text import first_line
from fastloop.fastloader.columns.image_headers import (
    Encoded,
    Encoding,
    check_bits_of_jpeg,
    has_end,
    is_for_pillow,
    is_whole_png,
)

BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    NotImplementedError,
    struct.error,
    zlib.error,
)
"""Exceptions that Pillow raises for a broken file, or for one of a kind that it does not read."""
LIBRARIES = {
    "simplejpeg": (("simplejpeg", "cv2"), "pip install simplejpeg opencv-python-headless"),
    "torchvision": (("torchvision",), "pip install torchvision"),
    "pil": (("PIL",), "pip install pillow"),
}
"""Decoder -> (modules that it needs, command that installs them), the fastest first."""

INSTALL_JPEG = "install libjpeg-turbo's headers (Debian: libjpeg62-turbo-dev), then fastloop again"
"""Advice for error messages about a missing native decoder."""


def decode_by_simplejpeg(data: Encoded, encoding: Encoding) -> np.ndarray:
    """Decode a JPEG file with libjpeg-turbo; PNG and WebP are not supported."""
    decode = _load_simplejpeg().decode_jpeg
    try:
        # CMYK is decoded as it is stored, because cmyk_to_rgb converts it as Pillow does.
        if encoding == "CMYK JPEG":
            return cmyk_to_rgb(decode(data, colorspace="CMYK"))
        return decode(data, colorspace="RGB")
    except ValueError as error:
        raise _broken(encoding, error) from error


def decode_by_opencv(data: Encoded, encoding: Encoding) -> np.ndarray:
    """Decode a JPEG, PNG or WebP file with OpenCV, and convert its BGR to RGB."""
    if is_for_pillow(data):
        return decode_by_pillow(data, encoding)
    cv2 = load_opencv()
    data = bytes(data)
    # OpenCV would fill the missing part with grey.
    if not has_end(data):
        raise _broken(encoding, "it is cut off")
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise _broken(encoding, error.err) from error
    if image is None:
        raise _broken(encoding)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


def decode_by_torchvision(data: Encoded, encoding: Encoding) -> np.ndarray:
    """Decode a JPEG, PNG or WebP file with torchvision.

    The result is a view of a (3, height, width) tensor, except for CMYK JPEGs and for files that
    Pillow decodes, see `is_for_pillow`.
    """
    if is_for_pillow(data):
        return decode_by_pillow(data, encoding)
    torchvision_io = load_torchvision_io()
    # torchvision 0.29 crashes on some broken files.
    if encoding == "PNG" and not is_whole_png(data):
        raise _broken(encoding, "it is cut off, or a checksum is wrong")
    # torchvision's own conversion of CMYK depends on a marker that Pillow ignores.
    mode = "UNCHANGED" if encoding == "CMYK JPEG" else "RGB"
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    try:
        image = torchvision_io.decode_image(buffer, torchvision_io.ImageReadMode[mode])
    except RuntimeError as error:
        reason = re.sub(r"^.*\.cpp:\d+, ", "", first_line(error))
        raise _broken(encoding, reason) from error
    pixels = image.permute(1, 2, 0).numpy()
    return cmyk_to_rgb(pixels) if encoding == "CMYK JPEG" else pixels


def decode_by_pillow(data: Encoded, encoding: Encoding) -> np.ndarray:
    """Decode a JPEG, PNG or WebP file with Pillow, the reference for the other libraries.

    The array is read-only.
    """
    pil = import_module("PIL.Image")
    try:
        with pil.open(io.BytesIO(data)) as image:
            # Otherwise Pillow warns that it drops the transparency of a palette.
            image.info.pop("transparency", None)
            return np.asarray(image.convert("RGB"))
    except (*BROKEN, pil.DecompressionBombError) as error:
        is_unknown = isinstance(error, pil.UnidentifiedImageError)
        raise _broken(encoding, "no picture in it" if is_unknown else error) from error


def decode_any(data: Encoded) -> np.ndarray:
    """Decode a file of any format that Pillow reads to (height, width, 3) uint8 RGB.

    Of 16 bits per channel, only the upper 8 are kept. The array may be read-only. Raises ValueError
    for a broken file, and for a format that Pillow does not read.
    """
    pil = import_module("PIL.Image")
    try:
        with pil.open(io.BytesIO(data)) as image:
            # Otherwise Pillow warns that it drops the transparency of a palette.
            image.info.pop("transparency", None)
            # convert() would clip values of 16 bits to 255.
            if image.mode.startswith("I"):
                return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
            return np.asarray(image.convert("RGB"))
    except (*BROKEN, pil.DecompressionBombError) as error:
        if isinstance(error, pil.UnidentifiedImageError):
            check_bits_of_jpeg(data)
            raise ValueError(
                "no image that Pillow reads" if data else "the file is empty"
            ) from error
        raise ValueError(f"a broken image ({error})") from error


def cmyk_to_rgb(stored: np.ndarray) -> np.ndarray:
    """Convert (height, width, 4) uint8, as a CMYK JPEG stores it, to (height, width, 3) uint8 RGB.

    Like Pillow, this assumes Adobe's convention for every file: 255 means no ink.
    """
    ink, paper = 255 - stored[..., :3].astype(np.int32), stored[..., 3:].astype(np.int32)
    # Pillow's rounded division by 255, so that the pixels are the same.
    product = ink * paper + 128
    return (paper - (((product >> 8) + product) >> 8)).astype(np.uint8)


@cache
def load_opencv() -> Any:
    """Import cv2 and switch off its own threads for the whole process.

    Several of these threads would work on each image, and wait for each other and for the loader's
    threads.
    """
    cv2 = import_module("cv2")
    cv2.setNumThreads(0)
    return cv2


@cache
def load_torchvision_io() -> Any:
    """Import torchvision.io; raises ImportError with the reason if its decoders can't be used."""
    allowed = "a torchvision that was built for this torch has them: pip install torchvision"
    try:
        module = import_module("torchvision.io")
    except Exception as error:
        # A torchvision that was built for another torch may raise anything.
        reason = f"{type(error).__name__}: {first_line(error)}"
        problem = f"decoder='torchvision': torchvision can't be imported ({reason})"
        raise ImportError(f"{problem}; {allowed}") from error
    if not hasattr(torch.ops.image, "decode_image"):
        raise ImportError(f"decoder='torchvision': torchvision has no image decoders; {allowed}")
    return module


@cache  # import_module takes 0.8 us, and decoding a small image 15 us
def _load_simplejpeg() -> Any:
    return import_module("simplejpeg")


def _broken(encoding: Encoding, reason: object = None) -> ValueError:
    """The error for a broken file. reason: None: the reason is not known."""
    return ValueError(f"a broken {encoding}" + (f" ({reason})" if reason is not None else ""))


@dataclass(frozen=True)
class Codec:
    """A library's functions to decode and to resize images."""

    decode: Callable[[Encoded, Encoding], np.ndarray]
    """Decodes a file, as the functions decode_by_... do."""
    resize: Callable[[np.ndarray, np.ndarray, bool], None]
    """resize(pixels, out, antialias) resizes the image `pixels` to the size of `out`, and writes it
    there. The interpolation between pixels is bilinear. With antialias, pixels are averaged if the
    image becomes smaller. Both arrays are (height, width, 3) uint8."""


def choose_decoder(decoder: str | None) -> str:
    """Return `decoder`, or for None the fastest decoder of LIBRARIES that is installed.

    Raises ValueError for a name that is not in LIBRARIES, and ImportError if no library for the
    decoder is installed.
    """
    if decoder is not None and decoder not in LIBRARIES:
        raise ValueError(f"decoder={decoder!r}: allowed are {', '.join(LIBRARIES)}")
    for name in [decoder] if decoder else LIBRARIES:
        if all(find_spec(module) for module in LIBRARIES[name][0]):
            return name
    install = LIBRARIES[decoder or "simplejpeg"][1]
    raise ImportError(f"decoder={decoder!r} needs a library that is not installed: {install}")


@cache
def load_codec(decoder: str) -> Codec:
    """Import the library of a decoder in LIBRARIES and return its codec."""
    return {"simplejpeg": _simplejpeg, "torchvision": _torchvision, "pil": _pil}[decoder]()


def _simplejpeg() -> Codec:
    """The codec with libjpeg-turbo for JPEG files, and OpenCV for other files and for resizing."""
    cv2 = load_opencv()

    def decode(data: Encoded, encoding: Encoding) -> np.ndarray:
        decode_file = decode_by_simplejpeg if encoding.endswith("JPEG") else decode_by_opencv
        return decode_file(data, encoding)

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        is_smaller = out.shape[0] < pixels.shape[0] or out.shape[1] < pixels.shape[1]
        # INTER_AREA averages only when an image becomes smaller.
        interpolation = cv2.INTER_AREA if antialias and is_smaller else cv2.INTER_LINEAR
        cv2.resize(pixels, (out.shape[1], out.shape[0]), dst=out, interpolation=interpolation)

    return Codec(decode, resize)


def _torchvision() -> Codec:
    """The codec that decodes with torchvision and resizes with torch."""
    load_torchvision_io()

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        size = out.shape[:2]
        resized = torch.nn.functional.interpolate(image, size, mode="bilinear", antialias=antialias)
        torch.from_numpy(out).copy_(resized[0].permute(1, 2, 0))

    return Codec(decode_by_torchvision, resize)


def _pil() -> Codec:
    """The codec that decodes and resizes with Pillow."""
    pil = import_module("PIL.Image")

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        image = pil.fromarray(pixels)
        height, width = out.shape[:2]
        bilinear = pil.Resampling.BILINEAR
        if antialias:
            resized = image.resize((width, height), bilinear)
        else:
            # Pillow's resize() always antialiases, so an affine transform scales the image.
            scales = (image.width / width, 0, 0, 0, image.height / height, 0)
            resized = image.transform((width, height), pil.Transform.AFFINE, scales, bilinear)
        np.copyto(out, np.asarray(resized))

    return Codec(decode_by_pillow, resize)


@cache
def load_jpeg() -> Any | None:
    """The native decoder's module; None if it is absent or FASTLOOP_PURE=1."""
    if os.environ.get("FASTLOOP_PURE") == "1":
        return None
    try:
        return import_module("fastloop.fastloader._jpeg")
    except ImportError:
        return None


def describe_native_decoder() -> str:
    """Return `native`, with a reason if libjpeg decodes the entropy codes of baseline JPEGs.

    libjpeg takes longer for this than the native code, which works only with a libjpeg that it
    knows.
    """
    jpeg = load_jpeg()
    problem = None if jpeg is None else jpeg.own_scan_problem()
    return "native" if problem is None else f"native, but libjpeg reads the codes: {problem}"


def has_jpeg() -> bool:
    """True if crops of JPEG images are decoded natively."""
    return load_jpeg() is not None
