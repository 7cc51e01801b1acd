"""Find the fastest settings for a loop: candidates, a race among them, and a confirmed gain.

The package can be called, as `fastloop.tune(make_loader, space)`. It imports explain and lower
floors.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fastloop.core.types import Tree
    from fastloop.tune.loop_tuning import LoaderLike, LoopTuning


class _TuneModule(ModuleType):
    """The package's own class, which makes it callable: a package of modules, and a function."""

    def __call__(  # noqa: PLR0913 - the parameters of tune_loop
        self,
        make_loader: Callable[..., LoaderLike],
        space: Mapping[str, Sequence[Any]],
        step: Callable[[Tree], Any] | None = None,
        budget_s: float = 300.0,
        *,
        device: str = "auto",
        same_data: bool = True,
        min_window_s: float = 0.3,
    ) -> LoopTuning:
        """See `fastloop.tune.loop_tuning.tune_loop`, which has the same parameters."""
        # Imported at the first call, so that naming `fastloop.tune` imports no torch.
        from fastloop.tune.loop_tuning import tune_loop

        return tune_loop(
            make_loader,
            space,
            step,
            budget_s,
            device=device,
            same_data=same_data,
            min_window_s=min_window_s,
        )


# `fastloop.tune` names the package once any of its modules has been imported, and the function in
# fastloop's API: with this class both are the same object, as for `fastloop.explain`.
sys.modules[__name__].__class__ = _TuneModule
