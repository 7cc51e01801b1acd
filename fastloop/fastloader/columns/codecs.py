"""The libraries that `Images` decodes and resizes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch

from fastloop.fastloader.columns.decoders import (
    decode_by_opencv,
    decode_by_pillow,
    decode_by_simplejpeg,
    decode_by_torchvision,
    load_opencv,
    load_torchvision_io,
)
from fastloop.fastloader.columns.image_headers import Encoded, Encoding

LIBRARIES = {
    "simplejpeg": (("simplejpeg", "cv2"), "pip install simplejpeg opencv-python-headless"),
    "torchvision": (("torchvision",), "pip install torchvision"),
    "pil": (("PIL",), "pip install pillow"),
}
"""Decoder -> (modules that it needs, command that installs them), the fastest first."""


@dataclass(frozen=True)
class Codec:
    """A library's functions to decode and to resize images."""

    decode: Callable[[Encoded, Encoding], np.ndarray]
    """Decodes a file, see decoders.py."""
    resize: Callable[[np.ndarray, np.ndarray, bool], None]
    """resize(pixels, out, antialias) writes the image, resized, to `out`: bilinear interpolation
    between pixels; with antialias, pixels are averaged if the image becomes smaller."""


def choose_decoder(decoder: str | None) -> str:
    """Return `decoder`, or for None the fastest decoder that is installed.

    Raises ValueError for an unknown name, ImportError if the library is not installed.
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
    """libjpeg-turbo for JPEG files; OpenCV for others and for resizing."""
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
    load_torchvision_io()

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        size = out.shape[:2]
        resized = torch.nn.functional.interpolate(image, size, mode="bilinear", antialias=antialias)
        torch.from_numpy(out).copy_(resized[0].permute(1, 2, 0))

    return Codec(decode_by_torchvision, resize)


def _pil() -> Codec:
    pil = import_module("PIL.Image")

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        image, (height, width) = pil.fromarray(pixels), out.shape[:2]
        bilinear = pil.Resampling.BILINEAR
        if antialias:
            resized = image.resize((width, height), bilinear)
        else:
            # Pillow's resize() always antialiases.
            scales = (image.width / width, 0, 0, 0, image.height / height, 0)
            resized = image.transform((width, height), pil.Transform.AFFINE, scales, bilinear)
        np.copyto(out, np.asarray(resized))

    return Codec(decode_by_pillow, resize)
