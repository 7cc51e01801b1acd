"""Libraries that fastloop can do without."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import torch

from fastloop.protocols import Loader
from fastloop.types import Unsupported

INSTALL_FFCV = (
    "apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev && "
    "pip install setuptools wheel numba opencv-python-headless terminaltables pytorch_pfn_extras "
    "fastargs assertpy && pip install --no-build-isolation --no-deps ffcv"
)
"""It is built where it is installed, and names a build of OpenCV that needs a display."""


@runtime_checkable
class Needing(Protocol):
    """A loader, a store or a placement that needs such a library."""

    def check_installed(self) -> None:
        """Raise Unsupported, with the commands that install it, where it is absent."""
        ...


def check_libraries(loader: Loader) -> None:
    """Raise Unsupported where the loader or its store needs a library that is absent."""
    for one in (loader, loader.store):
        if isinstance(one, Needing):
            one.check_installed()


def check_found(module: str, needed_by: str, install: str) -> None:
    """Raise Unsupported, with the commands that install it, where the module is absent; it is not
    imported."""
    if find_spec(module) is None:
        raise Unsupported(f"{needed_by} needs {module}, which is not installed: {install}")


def imported(module: str, needed_by: str, install: str) -> Any:
    """The module; raises Unsupported, with the commands that install it, where it can't be had."""
    try:
        with contained():
            return import_module(module)
    except ImportError as error:
        raise Unsupported(f"{needed_by} needs {module} ({error}): {install}") from error


@contextmanager
def contained() -> Iterator[None]:
    """What a library does to others as it starts: torch's number of threads, of which FFCV sets its
    own, is what it was, and nobody is told which of its own libraries are old."""
    before = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
