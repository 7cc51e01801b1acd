"""What Hydra, pydantic and the system say of a wrong value, in one line each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

NOISE = ("Error executing job", "Set the environment variable", "Set hydra.searchpath")
HYDRAS = {name: f"hydra-{name}-launcher" for name in ("joblib", "ray", "submitit")}
"""Launchers that come with a package of their own."""
SYSTEM_ERROR = re.compile(r"^\w+: \[Errno \d+\] (.*)$")


class Refused(Exception):  # noqa: N818 - the command's answer, in one line
    """What was asked for can't be done; the message names the setting, its value, what is
    allowed."""


def one_line(said: str, known: Iterable[str]) -> str:
    """Hydra's words about a wrong name or value; a traceback of another kind stays as it is.

    `known` are the names of all settings, for "did you mean".
    """
    if "Traceback" in said:
        return _of_a_traceback(said)
    lines = [line.strip() for line in said.splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(NOISE))
    if found := re.search(
        r"Could not find '([\w@]+)/(.*?)' Available options in '.*?': (.*)", text
    ):
        group, option, others = found.groups()
        allowed = ", ".join(others.partition(" Config search path")[0].split())
        plugin = HYDRAS.get(option.partition("_")[0]) if group == "hydra/launcher" else None
        remedy = f"; pip install {plugin} brings it" if plugin else ""
        return f"{group}={option}: there is no such option; allowed are {allowed}{remedy}"
    if found := re.search(r"Could not override '(\S+)'\.", text):
        return _no_such_setting(found.group(1), known)
    if found := re.search(r"Ambiguous value for argument '(.*?)' ", text):
        return f"{found.group(1)}: several values need -m (--multirun), which sweeps over them"
    return text


def of_a_failure(reason: str, details: str) -> str:
    """Why a job failed, and where more is said unless its words name file and remedy already."""
    if found := SYSTEM_ERROR.match(reason):
        return found.group(1)
    if reason.startswith(("BadData: ", "unsupported: ", "invalid: ")):
        return reason.removeprefix("BadData: ")
    return f"{reason}; see {details}" if details else reason


def explained(setting: str, error: Any) -> str:
    """A pydantic.ValidationError as setting=value: what is allowed."""
    lines = []
    for one in error.errors():
        name = ".".join(str(part) for part in (setting, *one["loc"]) if str(part))
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] == "unexpected_keyword_argument":
            lines.append(f"{name}: there is no such setting")
        else:
            lines.append(f"{name}={one['input']}: {message}" if one["loc"] else message)
    return "; ".join(lines)


def _no_such_setting(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    said = f"; did you mean {near[0]}?" if near and name not in near else ""
    if name.startswith(("dataset.", "loader.")):
        said += f"; +{name}=… gives it to a class of one's own"
    return f"{name}: there is no such setting{said}"


def _of_a_traceback(said: str) -> str:
    if found := re.search(r"ConfigError: (.*)", said):  # raised in a process of a Hydra launcher
        return found.group(1)
    lines = [line for line in said.strip().splitlines() if line and not line.startswith(NOISE)]
    last = lines[-1]
    if found := SYSTEM_ERROR.match(last):
        return f"the outputs folder (FASTLOOP_OUTPUTS): {found.group(1)}"
    if "Config group override must be" in last:
        return f"an override is name=value: {last}"
    return said
