"""The native core: its module, if it was built and is not switched off."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any


@cache
def load_core() -> Any | None:
    """The native core's module; None if it is absent or FASTLOOP_PURE=1.

    Raises ImportError if FASTLOOP_NATIVE=1 and it is absent.
    """
    if os.environ.get("FASTLOOP_PURE") == "1":
        return None
    try:
        return import_module("fastloop.fastloader._core")
    except ImportError as error:
        if os.environ.get("FASTLOOP_NATIVE") == "1":
            # If the core is expected, its absence would only show as a slow run.
            raise ImportError(
                f"FASTLOOP_NATIVE=1, but the native core is absent: {error}"
            ) from error
        return None


def has_core() -> bool:
    """True if FastLoader runs on the native core."""
    return load_core() is not None
