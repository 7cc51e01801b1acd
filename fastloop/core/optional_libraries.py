"""Optional libraries: checks that they are installed, their versions, and their import."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fastloop.core.types import Unsupported

# `fastloop doctor` and `fastloop env` ask for versions, and must not wait for torch.
if TYPE_CHECKING:
    from fastloop.core.plan import Loader

FFCV_NEEDS = "apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev"
"""Command that installs the system's packages with which FFCV is built."""
INSTALL_FFCV = (
    f"{FFCV_NEEDS} && "
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
    """Raise Unsupported if a library that the loader or its store needs is missing."""
    for option in (loader, loader.store):
        if isinstance(option, HasInstallCheck):
            option.check_installed()


@dataclass(frozen=True)
class Library:
    """A library that an option needs, and that is not installed with fastloop.

    >>> Library("zarr_of_tomorrow", "store=zarr", "pip install zarr").check()
    Traceback (most recent call last):
        ...
    fastloop.core.types.Unsupported: store=zarr needs zarr_of_tomorrow, which is not installed: \
pip install zarr
    """

    module: str
    """The name that is imported."""
    option: str
    """The option that needs the library, such as `store=zarr`."""
    install: str
    """The commands that install the library."""

    def check(self) -> None:
        """Raise Unsupported, with the commands that install the library, if it is missing.

        The library is not imported.
        """
        # find_spec imports the packages around a module, and fails without them.
        package = self.module.partition(".")[0]
        if find_spec(package) is None or find_spec(self.module) is None:
            raise Unsupported(
                f"{self.option} needs {self.module}, which is not installed: {self.install}"
            )

    def load(self, module: str = "") -> Any:
        """Import the library, or its module with this name.

        Raises Unsupported, with the commands that install the library, if the import fails.
        """
        name = module or self.module
        try:
            with isolate_import():
                return import_module(name)
        except ImportError as error:
            raise Unsupported(f"{self.option} needs {name} ({error}): {self.install}") from error


def version_of(package: str) -> str | None:
    """The version of an installed package, by its name for pip; None if it is not installed.

    >>> version_of("fastloop-of-tomorrow") is None
    True
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
