"""`execution=compiled`: torch.compile of the model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.types import Step, Unsupported, option

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable with the folder of the compiled code."""


@option
class CompiledExecution:
    """Runs a model that torch.compile has compiled; loss and optimizer are not compiled.

    The model is compiled during the warm-up epoch, also for the shape of an incomplete last batch.
    The compiled code is cached in outputs/compiled, so that later trials only load it.
    """

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    """The argument `mode` of torch.compile; "default" stands for None."""
    dynamic: bool | None
    """The argument `dynamic` of torch.compile. True: one code for all batch sizes; False: a code
    for each batch size; None: torch decides."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported if there is no compiler for the device's code."""
        if device.type == "cuda" and find_spec("triton") is None:
            install = "which is not installed: pip install triton"
            raise Unsupported(f"execution=compiled needs triton, {install}")
        variable, default = _compiler(device)
        name = os.environ.get(variable) or default
        if shutil.which(name) is None:
            remedy = f"apt-get install g++, or set {variable}=<path>"
            raise Unsupported(f"execution=compiled needs a compiler, {name} not found: {remedy}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, compiled at the first call with a shape."""
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # inductor reads the variable when it compiles. Its default is a folder in /tmp that is
        # never cleaned up; importing dynamo may have set the variable to this default already.
        if os.environ.get(CACHE, default_cache_dir()) == default_cache_dir():
            os.environ[CACHE] = str(outputs_folder() / "compiled")

        # With more compile threads, torch starts worker processes, which outlive the warm-up and
        # compete with the timed window.
        inductor.compile_threads = 1
        # Beyond the limit of recompilations, code would run eagerly but be measured as compiled.
        if hasattr(dynamo, "fail_on_recompile_limit_hit"):
            dynamo.fail_on_recompile_limit_hit = True
        mode = None if self.mode == "default" else self.mode
        return torch.compile(module, mode=mode, dynamic=self.dynamic)

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step, unchanged."""
        return step


def _compiler(device: torch.device) -> tuple[str, str]:
    """The environment variable for the compiler of the device's code, and the default compiler."""
    if device.type == "cuda":
        return "CC", "gcc" if shutil.which("gcc") else "clang"
    return "CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
