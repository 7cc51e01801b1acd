"""The user's own transform: a function of a sample or of a batch."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator

from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.core.user_code import UserFunction, check_callable, error_line


@option
class UserTransform:
    """The user's own transform, `transform._target_=package.module.name`, of whole samples.

    A sample is the object that the Dataset returns, such as (image, label). The target is the
    function, or a class with callable instances, such as the classes of torchvision.transforms.v2.
    """

    where: Literal["worker", "device"]
    """worker: the function gets each sample, in the process that decodes the sample; device: the
    function gets each batch, on the device."""
    target: Annotated[str, AfterValidator(check_callable)]
    """Import path `package.module.name` of the function, or of a class with callable instances."""
    kwargs: dict[str, Any]
    """Keyword arguments of the target."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> UserTransform:
        UserFunction(self.target, self.kwargs).check()
        return self

    def transform_sample(self, sample: Tree) -> Tree:
        """The function's result for a sample; raises BadData if it fails."""
        return self._call(sample)

    def transform_batch(self, batch: Tree) -> Tree:
        """The function's result for a batch; raises BadData if it fails."""
        return self._call(batch)

    def _call(self, tree: Tree) -> Tree:
        try:
            return self._function(tree)
        except (BadData, Unsupported):
            raise
        except Exception as error:
            kind = type(tree).__name__
            what = f"a whole {'sample' if self.where == 'worker' else 'batch'}, here a {kind}"
            raise BadData(f"{self.target}: {error_line(error)} (its argument is {what})") from error

    @cached_property
    def _function(self) -> UserFunction:
        return UserFunction(self.target, self.kwargs)
