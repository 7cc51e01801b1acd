"""Why a job takes as long as it does: the ladder, the verdict, what-ifs predicted and tried.

The package is callable, as `fastloop.explain(loader, step)`. It imports
from fastloop.sweep and lower floors (see docs/architecture.md).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.explain.explain_loop import LoopExplanation
    from fastloop.explain.loop_rungs import LoaderOrFunction, LoopStep


class _ExplainModule(ModuleType):
    """The package's own class, which makes it callable: a package of modules, and a function."""

    def __call__(
        self,
        loader: LoaderOrFunction,
        step: LoopStep | None = None,
        *,
        trials: int = 5,
        device: str = "auto",
        seconds: float = 60.0,
    ) -> LoopExplanation:
        """See `fastloop.explain.explain_loop.explain_loop`, which has the same parameters."""
        # Imported at the first call, so that naming `fastloop.explain` imports no torch.
        from fastloop.explain.explain_loop import explain_loop

        return explain_loop(loader, step, trials=trials, device=device, seconds=seconds)


# `fastloop.explain` names the package once any of its modules has been imported, and the function
# in fastloop's API: with this class both are the same object (PEP 562 has no __call__).
sys.modules[__name__].__class__ = _ExplainModule
