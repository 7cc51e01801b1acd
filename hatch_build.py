"""The build hook of the wheel: compiles FastLoader's native core, where there is a C compiler."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fPIC", "-pthread"]
FLAGS += ["-fvisibility=hidden"]
LINK = ["-shared", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else [])]
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # has no limited API


class CustomBuildHook(BuildHookInterface):
    """Adds the compiled core to the wheel; an editable install has it in its own tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile; without a compiler the wheel is pure, unless FASTLOOP_NATIVE=1 forbids that."""
        package = Path(self.root, "fastloop", "fastloader")
        suffix = sysconfig.get_config_var("EXT_SUFFIX") if IS_FREE_THREADED else ".abi3.so"
        target = package / f"_core{suffix}"
        target.unlink(missing_ok=True)  # of an earlier build
        try:
            compile_core(sorted(package.glob("native/*.c")), target)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("FASTLOOP_NATIVE") == "1":
                raise RuntimeError(
                    f"FASTLOOP_NATIVE=1, but the core did not build: {error}"
                ) from error
            self.app.display_warning(
                f"FastLoader's native core is left out, as it did not build: {error}"
            )
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"], build_data["infer_tag"] = False, IS_FREE_THREADED
        if not IS_FREE_THREADED:
            build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(f"/fastloop/fastloader/{target.name}")


def compile_core(sources: list[Path], target: Path) -> None:
    """Compile with $CC or cc, and rename the result: the old one may be in use."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    include = f"-I{sysconfig.get_paths()['include']}"
    built = target.with_name(f"{target.name}.{os.getpid()}")
    subprocess.run(
        [*compiler, *FLAGS, *LINK, include, *map(str, sources), "-o", str(built)], check=True
    )
    built.replace(target)
