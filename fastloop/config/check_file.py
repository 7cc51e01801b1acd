"""`fastloop.yaml`: what `fastloop check` measures in a user's repository, and what it allows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from pydantic.dataclasses import dataclass
from yaml import YAMLError

from fastloop.config.messages import validation_message
from fastloop.core.types import UsageError

STRICT = pydantic.ConfigDict(extra="forbid")
IN_CI = ("tracker=none", "report=false")
"""What a check does without, unless its job says otherwise."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckSettings:
    """The content of fastloop.yaml."""

    job: str | list[str]
    """Arguments of `fastloop run`."""
    fail_above: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    """Allowed regression in percent."""
    measure: Literal["seconds", "limit_fraction"] = "seconds"
    """What is compared: seconds, or seconds relative to the machine's limit beside each trial."""
    base: str = "fastloop-base.json"
    """The file of the recorded results, relative to the folder of fastloop.yaml."""
    allow: list[Literal["machine", "versions", "data", "cache"]] = Field(default_factory=list)
    """Differences from the base that do not end the check."""

    @property
    def arguments(self) -> list[str]:
        """The job as a command line."""
        words = shlex.split(self.job) if isinstance(self.job, str) else [*self.job]
        names = {word.partition("=")[0] for word in words}
        return [each for each in IN_CI if each.partition("=")[0] not in names] + words


def read_check_file(path: Path) -> CheckSettings:
    """The settings in that file. Raises UsageError in one line."""
    if not path.is_file():
        example = 'such as one with the line  job: "dataset=digits loader=raw"'
        raise UsageError(f"file={path}: no such file; allowed: a yaml file, {example}")
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: allowed: settings such as job: and fail_above:")
    try:
        return CheckSettings(**values)
    except pydantic.ValidationError as error:
        raise UsageError(f"{path}: {validation_message('', error)}") from error
    except TypeError as error:  # a name that is not text
        raise UsageError(f"{path}: {error}") from error
