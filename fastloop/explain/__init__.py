"""Explain why a job takes as long as it does, and which changes make it faster.

The ladder is the time that each part adds to an epoch, the verdict names the cause, and a what-if
is a change with its predicted and realised gain. The package is callable, as
`fastloop.explain(loader, step)`. It imports from fastloop.sweep and lower floors (see
docs/architecture.md).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.explain.explain_loop import LoopExplanation
    from fastloop.explain.loop_rungs import LoaderOrFunction, LoopStep


class _ExplainModule(ModuleType):
    """The class of this package: a module that can also be called like a function."""

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
