"""Why a job takes as long as it does: the ladder, the ceiling, what-ifs predicted and tried.

The module is callable, as `fastloop.explain(loader, step)`. Imports sweep and lower floors.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.explain.loop import LoaderOrFunction
    from fastloop.explain.loop_explanation import LoopExplanation
    from fastloop.explain.loop_rungs import LoopStep


class _ExplainModule(ModuleType):
    """A folder of modules for fastloop, and a function for its users."""

    def __call__(
        self,
        loader: LoaderOrFunction,
        step: LoopStep | None = None,
        *,
        trials: int = 5,
        device: str = "auto",
        seconds: float = 60.0,
    ) -> LoopExplanation:
        """See `fastloop.explain.loop.explain_loop`, which has the same parameters."""
        from fastloop.explain.loop import explain_loop

        return explain_loop(loader, step, trials=trials, device=device, seconds=seconds)


sys.modules[__name__].__class__ = _ExplainModule
