"""A model of one's own: a class or a function that gives an nn.Module."""

from __future__ import annotations

import copy
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator
from torch import nn
from torch.nn.parameter import is_lazy

from fastloop.network import shown, unfit
from fastloop.own import called, check_arguments, located, parameters, usable
from fastloop.types import BadData, Leaves, Unsupported, option

OFFERED = ("input_shape", "num_classes")


@option
class OwnModel:
    """`model._target_=package.module.Name`, called in the trial's process.

    A parameter of the name input_shape or num_classes gets that of the data. What the module gives
    is what torch's cross_entropy takes with the targets: (batch, classes) or
    (batch, classes, ...).
    """

    target: Annotated[str, AfterValidator(usable)]
    kwargs: dict[str, Any]

    @model_validator(mode="after")
    def _arguments_fit(self) -> OwnModel:
        check_arguments(self.target, self.kwargs, OFFERED)
        return self

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:  # noqa: ARG002
        """Raise Unsupported where the samples are not (input, int64 target) pairs."""
        if sample and (len(sample) != 2 or sample[1][0] != "int64"):
            raise unfit(self.target, "(input, int64 target)", shown(sample))

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """What the target gives, or a copy of what it is; raises BadData where that is no module.

        What else fails in it is raised as BadData, too; Unsupported where it has lazy layers.
        """
        found = located(self.target)
        if not isinstance(found, nn.Module):
            offered = {"input_shape": input_shape, "num_classes": num_classes}
            taken = parameters(self.target) - self.kwargs.keys()
            given = {name: value for name, value in offered.items() if name in taken}
            found = called(self.target, self.kwargs | given)
        if not isinstance(found, nn.Module):
            raise BadData(f"{self.target}: it gives {type(found).__name__}, no torch.nn.Module")
        if any(is_lazy(one) for one in found.parameters()):
            why = "its lazy layers have no size before the first batch; input_shape can tell it"
            raise Unsupported(f"model={self.target}: {why}")
        return copy.deepcopy(found)
