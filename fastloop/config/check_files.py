"""Read and write the two files of `fastloop check` in a user's repository.

`fastloop.yaml` holds the settings of the check. `fastloop-base.json` holds the base: the recorded
results with which later results are compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.resolvers import oc
from pydantic import Field
from pydantic.dataclasses import dataclass

from fastloop.config.value_messages import validation_message
from fastloop.core.atomic_files import write_text
from fastloop.core.outputs_folder import refuse_unwritable
from fastloop.core.passwords import without_address_users
from fastloop.core.result import Result
from fastloop.core.text import shorten_words
from fastloop.core.types import UsageError

STRICT = pydantic.ConfigDict(extra="forbid")
ENV = "oc.env"
"""OmegaConf's resolver of environment variables."""
FASTLOOP_VARIABLES = "FASTLOOP_"
"""Beginning of the names of the environment variables that conf/ itself reads."""
FAIL_ABOVE = 10.0
"""Allowed regression from a recorded base, in percent, if fastloop.yaml has no `fail_above`."""
IN_CI = ("tracker=none", "report=false")
"""Settings that a check adds to its job, unless the job has them."""
_BASE = pydantic.TypeAdapter(list[Result])
"""Reads and writes the recorded results."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckSettings:
    """The content of fastloop.yaml."""

    job: str | list[str]
    """Arguments of `fastloop run`."""
    fail_above: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Allowed regression in percent; None: 10 from a recorded base, 2 with against=."""
    measure: Literal["seconds", "limit_fraction"] = "seconds"
    """The compared figure: seconds; or limit_fraction, which relates them to the machine's limit,
    measured next to each trial."""
    base: str = "fastloop-base.json"
    """The file of the recorded results, relative to the folder of fastloop.yaml."""
    allow: list[Literal["machine", "versions", "data", "cache"]] = Field(default_factory=list)
    """Differences from the base that do not end the check."""

    @property
    def percent_allowed(self) -> float:
        """The allowed regression from a recorded base, in percent."""
        return FAIL_ABOVE if self.fail_above is None else self.fail_above

    @property
    def arguments(self) -> list[str]:
        """The job as a command line, with the settings that a check adds."""
        names = {word.partition("=")[0] for word in self.words}
        return [each for each in IN_CI if each.partition("=")[0] not in names] + self.words

    @property
    def words(self) -> list[str]:
        """The words of the job; raises ValueError for an unmatched quotation mark."""
        return shlex.split(self.job) if isinstance(self.job, str) else [*self.job]


def read_check_file(path: Path) -> CheckSettings:
    """Read fastloop.yaml. Raises UsageError, with one line, if it is missing or wrong."""
    if not path.is_file():
        example = 'such as one with the line  job: "dataset=digits loader=raw"'
        raise UsageError(f"file={path}: no such file; allowed: a yaml file, {example}")
    values = _read_values(path)
    for name, value in values.items():
        _check_plain(path, name, value)
    try:
        settings = CheckSettings(**values)
        words = settings.words
    except pydantic.ValidationError as error:
        known = [each.name for each in fields(CheckSettings)]
        raise UsageError(f"{path}: {validation_message('', error, known)}") from error
    # The file has a name that is not text, such as `1: 2`.
    except TypeError as error:
        raise UsageError(f"{path}: {error}") from error
    # The text has an unmatched quotation mark.
    except ValueError as error:
        raise UsageError(f"{path}: job: {error}") from error
    if not "".join(words).strip():
        allowed = 'allowed: arguments of fastloop run, such as "dataset=digits loader=raw"'
        raise UsageError(f"{path}: job: it is empty; {allowed}")
    return settings


def _read_values(path: Path) -> dict[Any, Any]:
    """Read the yaml file. Raises UsageError if it can't be read, or is not a mapping."""
    try:
        # OmegaConf.load is not safe here: the file may come with a stranger's pull request. Its
        # aliases may nest endlessly, and its interpolations may read the environment.
        values: Any = yaml.load(path.read_bytes(), Loader=get_yaml_loader())
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise UsageError(f"{path}: can't be read: its lists are nested too deeply") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path}: allowed: settings such as job: and fail_above:")
    return values


def base_path(path: Path, settings: CheckSettings) -> Path:
    """The file of the recorded results. Raises UsageError if it is outside of the repository."""
    # `base` comes from the file, and record=true would write to any path that it names.
    base = path.parent / settings.base
    folder = path.resolve().parent
    repository = next(
        (each for each in (folder, *folder.parents) if (each / ".git").exists()), folder
    )
    if not base.resolve().is_relative_to(repository):
        allowed = f"allowed: a file below {repository}"
        raise UsageError(
            f"{path}: base: {settings.base}: it is outside of the repository; {allowed}"
        )
    return base


@contextmanager
def withheld_environment() -> Iterator[None]:
    """Keep the job's yaml files from reading environment variables, such as secrets of the runner.

    The job may name a folder of yaml files (-cd), which also come with the repository.
    """
    OmegaConf.register_new_resolver(ENV, _own_variable, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver(ENV, oc.env, replace=True)


def _own_variable(name: str, *default: str | None) -> str | None:
    """The value of a variable that conf/ reads; raises UsageError for any other variable."""
    if not name.startswith(FASTLOOP_VARIABLES):
        raise UsageError(f"${{{ENV}:{name}}} is not resolved in a check; allowed: plain values")
    return oc.env(name, *default)


def _check_plain(path: Path, name: object, value: object) -> None:
    """Raise UsageError unless the setting is a plain value or a list of plain values.

    Plain values are no lists or dicts, and have no interpolations.
    """
    # `${oc.env:TOKEN}` would print a secret of the CI's runner.
    parts = value if isinstance(value, list) else [value]
    if any(isinstance(part, list | dict) for part in parts):
        raise UsageError(f"{path}: {name}: allowed: a value, or a list of values")
    if found := [part for part in parts if isinstance(part, str) and "${" in part]:
        reason = "interpolations such as ${oc.env:...} are not resolved in a check"
        raise UsageError(
            f"{path}: {name}: {shorten_words(found[0])}: {reason}; allowed: plain values"
        )


def save_base(results: Sequence[Result], path: Path) -> None:
    """Write the results with all of their trials, without the parts that no check compares."""
    # The file is meant for a user's repository: explanations and spans would make it large.
    kept = [replace(each, attribution={}, explanation=None, rounds=[]) for each in results]
    write_text(path, without_address_users(_BASE.dump_json(kept, indent=1).decode()) + "\n")


def check_base_path(path: Path) -> None:
    """Raise UsageError if no base can be written at the path, without writing anything."""
    refuse_unwritable(f"base: {path}", path)


def load_base(path: Path) -> dict[str, Result]:
    """Load the base: name of a job -> its recorded result. Raises UsageError if there is none."""
    hint = "fastloop check record=true records it"
    try:
        results = _BASE.validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"base: {path}: no such file; {hint}") from error
    except (pydantic.ValidationError, OSError) as error:
        reason = "not one of fastloop's" if isinstance(error, ValueError) else str(error)
        raise UsageError(f"base: {path}: can't be read: {reason}; {hint}") from error
    if not results:
        raise UsageError(f"base: {path}: it holds no job; {hint}")
    return {each.name: each for each in results}
