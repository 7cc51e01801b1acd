"""The build hook of the wheel: compiles FastLoader's native parts, where there is a C
compiler."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILER = shlex.split(os.environ.get("CC") or "cc")
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fPIC", "-pthread"]
FLAGS += ["-fvisibility=hidden"]
LINK = ["-shared", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else [])]
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # has no limited API
APT = "Debian: apt-get install libjpeg62-turbo-dev"


class CustomBuildHook(BuildHookInterface):
    """Adds the compiled extensions to the wheel; an editable install has them in its own tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; without a compiler the wheel is pure, unless FASTLOOP_NATIVE=1 forbids that.

        version: "editable" or "standard". The decoder of JPEG images is left out if libjpeg-turbo
        is missing.
        """
        package = Path(self.root, "fastloop", "fastloader")
        # A wheel is compiled elsewhere: an editable install of the same tree may be in use, and
        # keeps its own extensions, whatever compiler makes those of the wheel.
        self.scratch = None if version == "editable" else tempfile.TemporaryDirectory()
        folder = Path(self.scratch.name) if self.scratch else package
        suffix = sysconfig.get_config_var("EXT_SUFFIX") if IS_FREE_THREADED else ".abi3.so"
        core, jpeg = (folder / f"{name}{suffix}" for name in ("_core", "_jpeg"))
        for target in (core, jpeg):
            target.unlink(missing_ok=True)  # an editable install's, of older sources
        try:
            sources = [*package.glob("native/*.c"), *package.glob("native/bindings/*.c")]
            compile_extension(sorted(sources), core)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("FASTLOOP_NATIVE") == "1":
                raise RuntimeError(
                    f"FASTLOOP_NATIVE=1, but the core did not build: {error}"
                ) from error
            self.app.display_warning(
                f"FastLoader's native core is left out, as it did not build: {error}"
            )
            return
        try:
            compile_decoder(sorted(package.glob("native/jpeg/*.c")), jpeg)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = f"it needs libjpeg-turbo with its headers ({APT}): {error}"
            self.app.display_warning(f"The native decoder of JPEG images is left out: {reason}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"], build_data["infer_tag"] = False, IS_FREE_THREADED
        if not IS_FREE_THREADED:
            build_data["tag"] = f"cp311-abi3-{platform}"
        built = [target for target in (core, jpeg) if target.exists()]
        if self.scratch:
            files = {str(target): f"fastloop/fastloader/{target.name}" for target in built}
            build_data["force_include"] |= files

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled for the wheel, which has it now."""
        if self.scratch:
            self.scratch.cleanup()


def compile_decoder(sources: list[Path], target: Path) -> None:
    """Compile with libjpeg-turbo, where possible as a part of the extension, which then needs none
    when it runs, and shares none with other packages."""
    command = [*COMPILER, "-print-file-name=libjpeg.a"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    hidden = [] if sys.platform == "darwin" else ["-Wl,--exclude-libs,ALL"]
    if Path(library).is_absolute():
        try:
            return compile_extension(sources, target, [library, *hidden, "-lm"])
        except subprocess.CalledProcessError:
            pass  # some static libraries can't be parts of shared ones
    return compile_extension(sources, target, ["-ljpeg", "-lm"])


def compile_extension(sources: list[Path], target: Path, libraries: Sequence[str] = ()) -> None:
    """Compile with $CC or cc, and rename the result: the old one may be in use."""
    include = f"-I{sysconfig.get_paths()['include']}"
    built = target.with_name(f"{target.name}.{os.getpid()}")
    command = [*COMPILER, *FLAGS, *LINK, include, *map(str, sources), *libraries, "-o", str(built)]
    subprocess.run(command, check=True)
    built.replace(target)
