"""Turn errors of Hydra, of the system and of a user's own classes into one-line messages.

A message names the setting and its value, and says which values are allowed.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from hydra.errors import (
    CompactHydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import Node
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fastloop.config.catalogue import find_group, overridable_names
from fastloop.config.suggestions import option_hint, setting_hint
from fastloop.config.value_messages import LISTED, validation_message
from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.passwords import without_passwords
from fastloop.core.text import first_line, printable, shorten_words
from fastloop.core.types import UsageError
from fastloop.core.user_code import error_line, parameter_names

PLUGINS = {name: f"hydra-{name}-launcher" for name in ("joblib", "ray", "submitit")}
"""Name of a Hydra launcher that is not part of Hydra -> the package that has it."""
UNKNOWN_SETTING = re.compile(
    r"Could not override '\S+'\.\nTo append to your config use \+(.+)"
    r"|Could not override '(\S+)'\.|delete from config\. '(\S+?)' does"
)
"""Hydra's messages for a setting that does not exist: the override, or only its name."""
INTERPOLATIONS = "${<another setting>} or ${oc.env:<variable>}"
"""The allowed forms of values that refer to other values, for messages."""
OVERRIDE_START = re.compile(r"[~+]{0,2}[\w./@]+=")
"""The start of an override."""
ERROR_NUMBER = re.compile(r"^\[Errno \d+\] (.*)$")
"""Text of an OSError; the group is the text without the number."""


class ConfigError(CompactHydraException):
    """An invalid name or value; the message is the one line that the command prints."""


def usage_message(error: Exception) -> str | None:
    """The message for an invalid command line; None if the error has another cause."""
    text = _message(error)
    if text is None:
        return None
    # A misspelt setting is shown with its value, which may be an address with a password.
    text = without_passwords(text)
    return shorten_words(printable(text.replace("\n", "\\n")))


def _message(error: Exception) -> str | None:
    """The message for an error, by its class; None if the error is of another kind."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, MissingConfigException):
        file = error.missing_cfg_file or ""
        return _unknown_option(error) if "/" in file else _unknown_config(file)
    if isinstance(error, CompactHydraException | OmegaConfBaseException):
        return _hydra_message(error)
    if isinstance(error, OSError | YAMLError | UnicodeDecodeError):
        return _file_message(error)
    if "Config group override must be" in str(error):
        return f"overrides have the form name=value: {type(error).__name__}: {error}"
    return None


def _file_message(error: OSError | YAMLError | UnicodeDecodeError) -> str:
    """The message for a file that can't be read or written."""
    # The yaml file is one of the user's. Most of these errors name it.
    if isinstance(error, YAMLError):
        return f"a yaml file can't be read: {' '.join(str(error).split())}"
    if isinstance(error, UnicodeDecodeError):
        return f"a yaml file can't be read, as it is not UTF-8: {error}"
    # Hydra looks for a file with the option's name, which is too long for the file system.
    if error.errno == errno.ENAMETOOLONG:
        name = Path(str(error.filename)).stem
        return f"{name}: there is no such setting or option; the name is too long for a file"
    reason = ERROR_NUMBER.sub(r"\1", str(error))
    # The error may also be about a file elsewhere, such as a yaml of the user's, or about the limit
    # on open files.
    path = Path(str(error.filename or "")).absolute()
    outputs = outputs_folder()
    is_of_outputs = error.filename and (
        path in (outputs, *outputs.parents) or outputs in path.parents
    )
    return f"the outputs folder (FASTLOOP_OUTPUTS): {reason}" if is_of_outputs else reason


def instantiation_message(group: str, error: InstantiationException) -> str:
    """The message for Hydra's error of instantiating an option, with the name of the setting."""
    from pydantic import ValidationError

    match = re.search(r"full_key: (\S+)", str(error))
    setting = ".".join(part for part in (group, match.group(1) if match else "") if part)
    first = first_line(error)
    target = re.search(r"target '([^']+)'", first)
    if isinstance(error.__cause__, ValidationError):
        known = sorted(parameter_names(target[1])) if target else None
        return validation_message(setting, error.__cause__, known)
    if error.__cause__ is None:
        return f"{setting}: {first}"
    name = f"{setting}._target_={target.group(1)}" if target else setting
    return f"{name}: {error_line(error.__cause__)}"


def _not_an_override(error: OverrideParseException) -> str:
    """The message for an override that Hydra's grammar does not allow."""
    shown = error.override or "''"
    words = shown.split()
    if len(words) > 1 and all(OVERRIDE_START.match(word) for word in words):
        return f"{shown}: these are several arguments; allowed: each by itself, without quotes"
    hint = "a value with special characters is put in two pairs of quotes: 'name=\"value\"'"
    return f"{shown}: overrides have the form name=value; {hint}"


def _unknown_option(error: MissingConfigException) -> str:
    """The message for an option that does not exist, with the allowed ones."""
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    options = [*(error.options or ())]
    allowed = f"allowed: {', '.join(options)}" if options else "--help lists all"
    # submitit has two launchers, submitit_local and submitit_slurm.
    plugin = PLUGINS.get(option.partition("_")[0]) if group == "hydra/launcher" else None
    remedy = f"; install it by pip install {plugin}" if plugin else ""
    hint = option_hint(group, option, options)
    meant = f"; {hint}" if hint else ""
    return f"{group}={option}: there is no such option{meant}; {allowed}{remedy}"


def _unknown_config(name: str) -> str:
    reason = "there is no such yaml file"
    return f"--config-name={name}: {reason}; allowed: config, or a file in the folder of -cd"


def _hydra_message(error: CompactHydraException | OmegaConfBaseException) -> str:
    """The message for an error of Hydra or OmegaConf."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return _not_an_override(error)
    # The value is an interpolation that can't be resolved.
    if isinstance(error, OmegaConfBaseException):
        return _interpolation_message(error)
    if match := UNKNOWN_SETTING.search(text):
        return unknown_setting(match[1] or match[2] or match[3])
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    text = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return _hydra_sentence(text)


def _own_reason(error: BaseException | None) -> UsageError | None:
    """The UsageError of a resolver of fastloop's, which OmegaConf wraps twice; None without one."""
    while error and not isinstance(error, UsageError):
        error = error.__cause__ or error.__context__
    return error


def _interpolation_message(error: OmegaConfBaseException) -> str:
    """The message for a value such as ${nope}: the setting, the value, and the reason."""
    text = first_line(error)
    node = getattr(error, "child_node", None)
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
    # "Recursive interpolation detected", or a RecursionError.
    if "ecursi" in text:
        return f"{where}: it refers to itself; allowed: {INTERPOLATIONS}"
    return f"{where}: it can't be resolved; allowed: {INTERPOLATIONS}"


def _hydra_sentence(text: str) -> str:
    """Reword a message of Hydra if users often cause the error; return any other unchanged."""
    if match := re.search(r"already at '(\S+?)'", text):
        return f"+{match[1]}: this setting exists; allowed: {match[1]}=…, without +"
    if match := re.search(r"Ambiguous value for argument '(.*?)' ", text):
        # `pass_to_own_code` adds a plus to arguments of the user's own code. The message shows the
        # name as it was typed.
        name = match[1].lstrip("+")
        return f"{name}: several values are a sweep, which needs -m (--multirun)"
    return text


def unknown_setting(override: str, allowed: str = "") -> str:
    """The message for an override of a setting that no option has.

    allowed: words on the settings that the job's option has; empty if they are not known.
    """
    name = override.partition("=")[0]
    hint = setting_hint(name, overridable_names()) or allowed
    group = name.rpartition(".")[0]
    # Options of these groups may be code of the user's, with arguments that conf/ does not know.
    if not hint and name.startswith(("dataset.", "loader.", "model.", "collate.", "transform.")):
        hint = f"+{name}=… passes it to your own code"
    # `fastloop list` does not know Hydra's settings.
    elif not hint and name.startswith("hydra."):
        hint = "allowed: what `fastloop run --cfg hydra` shows"
    elif not hint and find_group(group):
        hint = f"`fastloop list {group}=<option>` lists the settings of an option"
    return f"{override}: there is no such setting; {hint or LISTED}"
