"""The native decoder of JPEG images, which is built with the package if libjpeg-turbo is there."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

INSTALL = "install libjpeg-turbo's headers (Debian: libjpeg62-turbo-dev), then fastloop again"


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
    """Return `native`, with the reason if libjpeg reads the codes of baseline JPEGs, which takes
    longer: the native code that reads them is used only with a libjpeg that it knows."""
    jpeg = load_jpeg()
    problem = None if jpeg is None else jpeg.own_scan_problem()
    return "native" if problem is None else f"native, but libjpeg reads the codes: {problem}"


def has_jpeg() -> bool:
    """True if crops of JPEG images are decoded natively."""
    return load_jpeg() is not None
