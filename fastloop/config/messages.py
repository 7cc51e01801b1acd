"""One-line messages for errors of Hydra, pydantic and the system about a name or value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from hydra.errors import CompactHydraException, InstantiationException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from fastloop.core.types import UsageError

PLUGINS = {name: f"hydra-{name}-launcher" for name in ("joblib", "ray", "submitit")}
"""Package of each Hydra launcher that is not part of Hydra."""
ERROR_NUMBER = re.compile(r"^\[Errno \d+\] (.*)$")


class ConfigError(CompactHydraException):
    """An invalid name or value; the message is the one line that the command prints."""


def usage_message(error: Exception, known_names: Iterable[str]) -> str | None:
    """The message for an invalid command line; None if the error has another cause.

    known_names: names of all settings, for "did you mean".
    """
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return _unknown_option(error)
    if isinstance(error, CompactHydraException | OmegaConfBaseException):
        return _hydra_message(error, known_names)
    if isinstance(error, OSError):
        reason = ERROR_NUMBER.sub(r"\1", str(error))
        return f"the outputs folder (FASTLOOP_OUTPUTS): {reason}"
    if "Config group override must be" in str(error):
        return f"overrides have the form name=value: {type(error).__name__}: {error}"
    return None


def validation_message(group: str, error: Any) -> str:
    """A pydantic.ValidationError as `setting=value: what is allowed`."""
    messages = []
    for detail in error.errors():
        name = ".".join(str(part) for part in (group, *detail["loc"]) if str(part))
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "unexpected_keyword_argument":
            messages.append(f"{name}: there is no such setting")
        else:
            messages.append(f"{name}={detail['input']}: {message}" if detail["loc"] else message)
    return "; ".join(messages)


def instantiation_message(group: str, error: InstantiationException) -> str:
    """The message for Hydra's error of instantiating an option, with the name of the setting."""
    from pydantic import ValidationError

    match = re.search(r"full_key: (\S+)", str(error))
    setting = ".".join(part for part in (group, match.group(1) if match else "") if part)
    if isinstance(error.__cause__, ValidationError):
        return validation_message(setting, error.__cause__)
    return f"{setting}: {str(error).splitlines()[0]}"


def _unknown_option(error: MissingConfigException) -> str:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    allowed = f"allowed: {', '.join(error.options)}" if error.options else "--help lists all"
    plugin = PLUGINS.get(option.partition("_")[0]) if group == "hydra/launcher" else None
    remedy = f"; install it by pip install {plugin}" if plugin else ""
    return f"{group}={option}: there is no such option; {allowed}{remedy}"


def _hydra_message(
    error: CompactHydraException | OmegaConfBaseException, known_names: Iterable[str]
) -> str:
    text = str(error)
    if isinstance(error, OmegaConfBaseException):  # of an interpolation
        return f"{error.full_key or 'the configuration'}: {text.splitlines()[0]}"
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    text = " ".join(line.strip() for line in text.splitlines() if line.strip())
    if match := re.search(r"Could not override '(\S+)'\.", text):
        return _unknown_setting(match.group(1), known_names)
    if match := re.search(r"Ambiguous value for argument '(.*?)' ", text):
        return f"{match.group(1)}: several values need -m (--multirun)"
    return text


def _unknown_setting(name: str, known_names: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known_names), n=1)
    hint = f"; did you mean {matches[0]}?" if matches and name not in matches else ""
    if name.startswith(("dataset.", "loader.", "model.", "collate.", "transform.")):
        hint += f"; +{name}=… passes it to your own code"
    return f"{name}: there is no such setting{hint}"
