"""Who decodes an image and brings it to a size, in calls that give the interpreter's lock back."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
LIBRARIES = {
    "simplejpeg": (("simplejpeg", "cv2"), "pip install simplejpeg opencv-python-headless"),
    "torchvision": (("torchvision",), "pip install torchvision"),
    "pil": (("PIL",), "pip install pillow"),
}
"""The fastest first: the modules that each needs, and what installs them."""


@dataclass(frozen=True)
class Codec:
    """What one of them does."""

    decoded: Callable[[Any], np.ndarray]
    """The bytes of a file -> (height, width, 3) uint8, RGB, as it lies in the file: a turn that
    EXIF asks for is not done."""
    resize: Callable[[np.ndarray, np.ndarray, bool], None]
    """That, to the size of a second one, which is written to. Bilinear, as if a pixel were a point;
    with antialias each pixel is a mean of those that it stands for."""


def chosen(decoder: str | None) -> str:
    """That decoder, or the fastest that is installed.

    Raises ValueError for an unknown name, ImportError for what is not installed.
    """
    if decoder is not None and decoder not in LIBRARIES:
        raise ValueError(f"decoder={decoder!r}: allowed are {', '.join(LIBRARIES)}")
    for name in [decoder] if decoder else LIBRARIES:
        if all(find_spec(one) for one in LIBRARIES[name][0]):
            return name
    install = LIBRARIES[decoder or "simplejpeg"][1]
    raise ImportError(f"decoder={decoder!r} needs a library that is not installed: {install}")


@cache
def codec(decoder: str) -> Codec:
    """The one of that name."""
    return {"simplejpeg": _simplejpeg, "torchvision": _torchvision, "pil": _pil}[decoder]()


def _simplejpeg() -> Codec:
    """libjpeg-turbo for JPEG files; OpenCV for what else there is, and for the resize."""
    decode, cv2 = import_module("simplejpeg").decode_jpeg, import_module("cv2")
    # OpenCV would share each image among threads of its own, which wait for each other and us.
    cv2.setNumThreads(0)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

    def decoded(data: Any) -> np.ndarray:
        if bytes(data[:3]) == b"\xff\xd8\xff":
            return decode(data)
        if is_png(data) and bytes(data[-12:]).find(b"IEND") < 0:
            raise ValueError("the file is cut off")  # OpenCV gives what there is
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if len(data) else None
        if image is None:
            raise ValueError("not an image, or a broken one")
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        smaller = antialias and (out.shape[0] < pixels.shape[0] or out.shape[1] < pixels.shape[1])
        how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
        cv2.resize(pixels, (out.shape[1], out.shape[0]), dst=out, interpolation=how)

    return Codec(decoded, resize)


def _torchvision() -> Codec:
    """Its decoder of JPEG files: the one of PNG files crashes on some that are broken."""
    io_of = import_module("torchvision.io")

    def decoded(data: Any) -> np.ndarray:
        if is_png(data):
            raise ValueError("decoder='torchvision' reads JPEG files only, 'pil' reads PNG")
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        image = io_of.decode_jpeg(buffer, mode=io_of.ImageReadMode.RGB)
        return image.permute(1, 2, 0).numpy()

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        size = out.shape[:2]
        made = torch.nn.functional.interpolate(image, size, mode="bilinear", antialias=antialias)
        torch.from_numpy(out).copy_(made[0].permute(1, 2, 0))

    return Codec(decoded, resize)


def _pil() -> Codec:
    pil = import_module("PIL.Image")

    def decoded(data: Any) -> np.ndarray:
        with pil.open(io.BytesIO(data)) as image:
            image.info.pop("transparency", None)  # Pillow warns when it drops a palette's
            return np.asarray(image.convert("RGB"))

    def resize(pixels: np.ndarray, out: np.ndarray, antialias: bool) -> None:
        image, (height, width) = pil.fromarray(pixels), out.shape[:2]
        if antialias:
            made = image.resize((width, height), pil.Resampling.BILINEAR)
        else:  # its resize knows no other way than to look at all pixels
            scales = (image.width / width, 0, 0, 0, image.height / height, 0)
            asked = (width, height), pil.Transform.AFFINE, scales
            made = image.transform(*asked, resample=pil.Resampling.BILINEAR)
        np.copyto(out, np.asarray(made))

    return Codec(decoded, resize)


def is_png(data: Any) -> bool:
    """By its first bytes."""
    return bytes(data[:8]) == PNG_MAGIC
