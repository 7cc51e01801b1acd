"""Optional libraries: checks that they are installed, their versions, and their import."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fastloop.core.types import Unsupported

# `fastloop doctor` and `fastloop env` ask for versions, and must not wait for torch.
if TYPE_CHECKING:
    from fastloop.core.plan import Loader

INSTALL_FFCV = (
    "apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev && "
    "pip install setuptools wheel numba opencv-python-headless terminaltables pytorch_pfn_extras "
    "fastargs assertpy && pip install --no-build-isolation --no-deps ffcv"
)
"""Commands that install FFCV. It is built on installation, hence the system's packages; --no-deps
leaves out the build of OpenCV that it requires, which needs a display."""


@runtime_checkable
class HasInstallCheck(Protocol):
    """A loader, a store or a placement that needs an optional library."""

    def check_installed(self) -> None:
        """Raise Unsupported, with the commands that install the library, if it is missing."""
        ...


def check_libraries(loader: Loader) -> None:
    """Raise Unsupported if a library is missing that the loader or its store needs."""
    for option in (loader, loader.store):
        if isinstance(option, HasInstallCheck):
            option.check_installed()


def check_available(module: str, needed_by: str, install: str) -> None:
    """Raise Unsupported, with the commands that install it, if a module is missing.

    The module is not imported.
    """
    if find_spec(module) is None:
        raise Unsupported(f"{needed_by} needs {module}, which is not installed: {install}")


def version_of(package: str) -> str | None:
    """The version of an installed package, by its name for pip; None if it is not installed.

    >>> version_of("fastloop-of-tomorrow") is None
    True
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def import_optional(module: str, needed_by: str, install: str) -> Any:
    """Import a module; raises Unsupported, with the commands that install it, if that fails."""
    try:
        with isolate_import():
            return import_module(module)
    except ImportError as error:
        raise Unsupported(f"{needed_by} needs {module} ({error}): {install}") from error


@contextmanager
def isolate_import() -> Iterator[None]:
    """Undo side effects of an import: restore torch's number of threads, which FFCV changes, and
    suppress warnings, such as those about a library's own outdated dependencies."""
    import torch

    before = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
