"""The user's own collate: a function from a list of samples to a batch."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, model_validator

from fastloop.core.types import Tree, option
from fastloop.core.user_code import UserFunction, check_callable


@option
class UserCollate:
    """The user's own collate, `collate._target_=package.module.name`.

    The process or thread that reads the samples calls the function. The function defines the
    samples: the same-data check compares delivered batches with the function's batches of single
    samples. The function gets None in place of a sample that could not be decoded. A sample is
    left out if the function makes None or an empty batch of it. If the Dataset's `__getitems__`
    returns a batch, the function gets that batch.
    """

    takes: ClassVar[Literal["canonical"]] = "canonical"
    tolerant: ClassVar[bool] = True
    defines_samples: ClassVar[bool] = True
    target: Annotated[str, AfterValidator(check_callable)]
    """Import path `package.module.name` of the function, or of a class with callable instances."""
    kwargs: dict[str, Any]
    """Keyword arguments of the target."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> UserCollate:
        """Check that the target can be called with the keyword arguments."""
        UserFunction(self.target, self.kwargs).check()
        return self

    def collate(self, samples: list[Tree]) -> Tree:
        """The function's batch of these samples."""
        return self._function(samples)

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """The batch, unchanged."""
        return batch

    @cached_property
    def _function(self) -> UserFunction:
        """The function that the target is, or returns; imported at the first call."""
        return UserFunction(self.target, self.kwargs)
