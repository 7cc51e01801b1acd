"""Find the fastest settings for a loop: candidates, a race among them, and a confirmed gain.

The package can be called, as `fastloop.tune(make_loader, space)`. It imports only `explain` and the
packages below it in the order of docs/architecture.md.
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
    """The class of this package, which can be called as a function and still holds modules."""

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
        """Call `fastloop.tune.loop_tuning.tune_loop`, which has the same parameters."""
        # This is imported at the first call, so that naming `fastloop.tune` does not import torch.
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


# `fastloop.tune` is a function of fastloop's API. Python also binds the name to this package once
# one of its modules is imported. With this class both are one object, as for `fastloop.explain`.
sys.modules[__name__].__class__ = _TuneModule
