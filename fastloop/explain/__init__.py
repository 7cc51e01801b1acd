"""Why a job takes as long as it does: the ladder, the ceiling, what-ifs predicted and tried.

The module is callable, as `fastloop.explain(loader, step)`. Imports sweep and lower floors.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _ExplainModule(ModuleType):
    """A folder of modules for fastloop, and a function for its users."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """See `fastloop.explain.loop.explain_loop`, which needs torch."""
        from fastloop.explain.loop import explain_loop

        return explain_loop(*args, **settings)


sys.modules[__name__].__class__ = _ExplainModule
