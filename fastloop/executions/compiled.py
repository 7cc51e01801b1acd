"""`execution=compiled`: torch.compile fuses the model's operations, as seed 004 advises."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from fastloop.files import outputs_folder
from fastloop.types import Step, Unsupported, option

CACHE = "TORCHINDUCTOR_CACHE_DIR"


@option
class Compiled:
    """torch.compile of the model; loss and optimizer stay as they are.

    It compiles in the warm-up epoch, the last short batch's shape included. What it has compiled
    lies in outputs/compiled, so that the next trial only loads it.
    """

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    dynamic: bool | None

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported where there is no compiler for the device's code."""
        if device.type == "cuda" and find_spec("triton") is None:
            said = "execution=compiled needs triton, which is not installed: pip install triton"
            raise Unsupported(said)
        variable, usual = _compiler(device)
        name = os.environ.get(variable) or usual
        if shutil.which(name) is None:
            remedy = f"apt-get install g++, or {variable}=<path> names one"
            raise Unsupported(f"execution=compiled needs a compiler, {name} is not here: {remedy}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, compiled when it is first called with a shape."""
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # Read when inductor compiles; without it the code would go to a folder of /tmp for good,
        # which torch itself may have named there already, as whatever imports dynamo makes it do.
        if os.environ.get(CACHE, default_cache_dir()) == default_cache_dir():
            os.environ[CACHE] = str(outputs_folder() / "compiled")

        # Several would be processes that outlive the warm-up and compete with the window.
        inductor.compile_threads = 1
        # At the limit the rest would run eagerly, and be measured as if it were compiled.
        if hasattr(dynamo, "fail_on_recompile_limit_hit"):
            dynamo.fail_on_recompile_limit_hit = True
        mode = None if self.mode == "default" else self.mode
        return torch.compile(module, mode=mode, dynamic=self.dynamic)

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step itself."""
        return step


def _compiler(device: torch.device) -> tuple[str, str]:
    """The variable that names the compiler which the device's code needs, and the usual one."""
    if device.type == "cuda":
        return "CC", "gcc" if shutil.which("gcc") else "clang"
    return "CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
