"""One-line messages for errors of Hydra, pydantic and the system about a name or value."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.errors import (
    CompactHydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import Node
from omegaconf.errors import OmegaConfBaseException

from fastloop.config.suggestions import option_hint, setting_hint
from fastloop.config.value_errors import value_message
from fastloop.core.printable import printable, shorten_words
from fastloop.core.types import UsageError
from fastloop.core.user_code import error_line

PLUGINS = {name: f"hydra-{name}-launcher" for name in ("joblib", "ray", "submitit")}
"""Name of a Hydra launcher that is not part of Hydra -> the package that has it."""
UNKNOWN = re.compile(r"Could not override '(\S+)'\.|delete from config\. '(\S+?)' does")
"""Hydra's messages for a setting that does not exist."""
INTERPOLATIONS = "${<another setting>} or ${oc.env:<variable>}"
"""The allowed forms of values that refer to other values, for messages."""
SETTING = re.compile(r"[~+]{0,2}[\w./@]+=")
"""The start of an override."""
ERROR_NUMBER = re.compile(r"^\[Errno \d+\] (.*)$")


class ConfigError(CompactHydraException):
    """An invalid name or value; the message is the one line that the command prints."""


def usage_message(error: Exception, known_names: Iterable[str]) -> str | None:
    """The message for an invalid command line; None if the error has another cause.

    known_names: names of all settings, for "did you mean".
    """
    text = _message(error, known_names)
    return None if text is None else shorten_words(printable(text.replace("\n", "\\n")))


def _message(error: Exception, known_names: Iterable[str]) -> str | None:
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, MissingConfigException):
        file = error.missing_cfg_file or ""
        return _unknown_option(error) if "/" in file else _unknown_config(file)
    if isinstance(error, CompactHydraException | OmegaConfBaseException):
        return _hydra_message(error, known_names)
    if isinstance(error, OSError):
        return _system_message(error)
    if "Config group override must be" in str(error):
        return f"overrides have the form name=value: {type(error).__name__}: {error}"
    return None


def _system_message(error: OSError) -> str:
    # Hydra looks for a file with the name of the option
    if error.errno == errno.ENAMETOOLONG:
        name = Path(str(error.filename)).stem
        return f"{name}: there is no such setting or option; the name is too long for a file"
    reason = ERROR_NUMBER.sub(r"\1", str(error))
    return f"the outputs folder (FASTLOOP_OUTPUTS): {reason}"


def validation_message(group: str, error: Any) -> str:
    """A pydantic.ValidationError as `setting=value: allowed values`."""
    return value_message(group, error.errors())


def instantiation_message(group: str, error: InstantiationException) -> str:
    """The message for Hydra's error of instantiating an option, with the name of the setting."""
    from pydantic import ValidationError

    match = re.search(r"full_key: (\S+)", str(error))
    setting = ".".join(part for part in (group, match.group(1) if match else "") if part)
    if isinstance(error.__cause__, ValidationError):
        return validation_message(setting, error.__cause__)
    first = str(error).splitlines()[0]
    if error.__cause__ is None:
        return f"{setting}: {first}"
    target = re.search(r"target '([^']+)'", first)
    name = f"{setting}._target_={target.group(1)}" if target else setting
    return f"{name}: {error_line(error.__cause__)}"


def _not_an_override(error: OverrideParseException) -> str:
    """The message for an override that Hydra's grammar does not allow."""
    shown = error.override or "''"
    words = shown.split()
    if len(words) > 1 and all(SETTING.match(word) for word in words):
        return f"{shown}: these are several arguments; allowed: each by itself, without quotes"
    hint = "special characters are quoted twice: 'name=\"value\"'"
    return f"{shown}: overrides have the form name=value; {hint}"


def _unknown_option(error: MissingConfigException) -> str:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    options = [*(error.options or ())]
    allowed = f"allowed: {', '.join(options)}" if options else "--help lists all"
    # submitit has two launchers, submitit_local and submitit_slurm
    plugin = PLUGINS.get(option.partition("_")[0]) if group == "hydra/launcher" else None
    remedy = f"; install it by pip install {plugin}" if plugin else ""
    hint = option_hint(group, option, options)
    told = f"; {hint}" if hint else ""
    return f"{group}={option}: there is no such option{told}; {allowed}{remedy}"


def _unknown_config(name: str) -> str:
    reason = "there is no such yaml file"
    return f"--config-name={name}: {reason}; allowed: config, or a file in the folder of -cd"


def _hydra_message(
    error: CompactHydraException | OmegaConfBaseException, known_names: Iterable[str]
) -> str:
    text = str(error)
    if isinstance(error, OverrideParseException):
        return _not_an_override(error)
    # an interpolation that can't be resolved
    if isinstance(error, OmegaConfBaseException):
        return _interpolation_message(error)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    text = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return _hydra_sentence(text, known_names)


def _own_reason(error: BaseException | None) -> UsageError | None:
    """The error of a resolver of ours, which OmegaConf wraps twice; None if there is none."""
    while error and not isinstance(error, UsageError):
        error = error.__cause__ or error.__context__
    return error


def _interpolation_message(error: OmegaConfBaseException) -> str:
    """The message for a value such as ${nope}: the setting, the value, and the reason."""
    text, node = str(error).splitlines()[0], getattr(error, "child_node", None)
    raw = node._value() if isinstance(node, Node) else None
    where = f"{error.full_key or 'the configuration'}" + ("" if raw is None else f"={raw}")
    if own := _own_reason(error):
        return f"{error.full_key or 'the configuration'}: {own}"
    if match := re.search(r"Interpolation key '(.*?)' not found", text):
        return f"{where}: there is no setting {match[1]}; allowed: {INTERPOLATIONS}"
    if match := re.search(r"Unsupported interpolation type (\S+)", text):
        return f"{where}: ${{{match[1]}:...}} is not known; allowed: {INTERPOLATIONS}"
    if match := re.search(r"Environment variable '(.*?)' not found", text):
        return f"{where}: the environment has no variable {match[1]}"
    # "Recursive interpolation detected", or a RecursionError
    if "ecursi" in text:
        return f"{where}: it refers to itself; allowed: {INTERPOLATIONS}"
    return f"{where}: it can't be resolved; allowed: {INTERPOLATIONS}"


def _hydra_sentence(text: str, known_names: Iterable[str]) -> str:
    """Hydra's message in the words of this command line, if users cause it often; else as it is."""
    if match := UNKNOWN.search(text):
        return unknown_setting(match[1] or match[2], known_names)
    if match := re.search(r"already at '(\S+?)'", text):
        return f"+{match[1]}: this setting exists; allowed: {match[1]}=…, without +"
    if match := re.search(r"Ambiguous value for argument '(.*?)' ", text):
        return f"{match[1]}: several values need -m (--multirun)"
    return text


def unknown_setting(name: str, known_names: Iterable[str]) -> str:
    """The message for a setting that no option has."""
    hint = setting_hint(name, known_names)
    told = f"; {hint}" if hint else ""
    # options of these groups may be code of the user's, with arguments that conf/ does not know
    if not hint and name.startswith(("dataset.", "loader.", "model.", "collate.", "transform.")):
        told = f"; +{name}=… passes it to your own code"
    return f"{name}: there is no such setting{told}"
