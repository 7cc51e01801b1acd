"""The user's own model: an nn.Module, or a class or function that returns one."""

from __future__ import annotations

import copy
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator
from torch import nn
from torch.nn.parameter import is_lazy

from fastloop.core.types import BadData, Leaves, Unsupported, option
from fastloop.core.user_code import (
    OFFERED_TO_MODEL,
    call,
    check_arguments,
    check_usable,
    locate,
    parameter_names,
)
from fastloop.options.model._inputs import describe_sample, unfit_error


@option
class UserModel:
    """The user's own model, `model._target_=package.module.Name`, called in the trial's process.

    Parameters named input_shape and num_classes receive the data's. The module's output is
    passed to torch's cross_entropy with the targets: (batch, classes) or (batch, classes, ...).
    """

    target: Annotated[str, AfterValidator(check_usable)]
    """Import path `package.module.name` of a class, a function, or an nn.Module object."""
    kwargs: dict[str, Any]
    """The arguments of the target, `model.<name>=` on the command line."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> UserModel:
        check_arguments(self.target, self.kwargs, OFFERED_TO_MODEL)
        return self

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:  # noqa: ARG002
        """Raise Unsupported if the samples are not (input, int64 target) pairs."""
        if sample and (len(sample) != 2 or sample[1][0] != "int64"):
            raise unfit_error(self.target, "(input, int64 target)", describe_sample(sample))

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A copy of the target's module, or the module itself if a class makes one that torch can't
        copy.

        Raises BadData if the target gives no module, and Unsupported for lazy layers.
        """
        target = module = locate(self.target)
        if not isinstance(target, nn.Module):
            offered = {"input_shape": input_shape, "num_classes": num_classes}
            taken = parameter_names(self.target) - self.kwargs.keys()
            arguments = {name: value for name, value in offered.items() if name in taken}
            module = call(self.target, self.kwargs | arguments)
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise BadData(f"{self.target}: it returns {kind}, not a torch.nn.Module")
        # Lazy parameters have no values before the first batch, so a module with them can be
        # neither copied nor reset.
        if any(is_lazy(parameter) for parameter in module.parameters()):
            reason = "lazy layers are not supported; take the parameter input_shape instead"
            raise Unsupported(f"model={self.target}: {reason}")
        # Each benchmark trains a copy: the target may be a module, a function may return the same
        # one at each call, and the modules of a class may share layers.
        try:
            return copy.deepcopy(module)
        except Exception:
            # torch copies no computed tensors, such as those of weight_norm. A class makes a new
            # module, which needs no copy.
            if isinstance(target, type):
                return module
            raise
