"""Parse a command line into a CommandLine: its flags, and its overrides in Hydra's grammar.

An override is an argument such as `loader=raw` or `num_workers=2`. Some spellings that Hydra does
not know, such as `dataset=mine.Squares`, are respelled.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_type_hints

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from fastloop.config.catalogue import (
    default_options,
    group_names,
    options_of,
    setting_names,
    takes_several,
)
from fastloop.config.messages import ConfigError, unknown_setting
from fastloop.config.suggestions import describe_flag
from fastloop.config.user_options import OPTION_METHODS
from fastloop.core.types import UsageError

INFO_VALUES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
"""The values that --info allows."""

FOLDERS = ("root", "dir")
"""Last parts of the names of settings that are paths of folders. They must not be empty, because an
empty path is the working folder."""

WITHOUT_EFFECT = {
    "hydra.verbose": "fastloop writes no log; HYDRA_FULL_ERROR=1 shows the traceback of an error",
    "hydra/job_logging": "fastloop writes no log; results are files in the outputs folder",
    "hydra/hydra_logging": "fastloop writes no log; results are files in the outputs folder",
}
"""Setting of Hydra -> the reason why it has no effect on fastloop."""

HOME_PATH = re.compile(r"(?<=[=,\[])~[^,\]'\"]*")
"""A value, or one of several values, that begins with ~, the home folder."""
TORCH_NAMES = {"collate_fn": "collate"}
"""torch's name of an option -> its name here."""
PLAIN_PATH = re.compile(r"[\w/.+-]*", re.ASCII)
"""A path that needs no quotes in Hydra's grammar, which knows only ASCII letters."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""A character that stands in sys.argv for a byte that is not UTF-8."""
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""A name of a class or a function with its module, such as mine.Squares."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Arguments of a command, split into flags and overrides."""

    flags: tuple[str, ...]
    """Flags with their values."""
    overrides: tuple[str, ...]
    """Overrides in Hydra's grammar."""
    is_sweep: bool
    """True with -m."""
    prints_info: bool
    """True with --help, --cfg or another flag that asks for information, so no job is measured."""
    config_path: str | None
    """The folder of -cp, which replaces conf/; None without one."""
    config_name: str | None
    """The name of the main yaml, from -cn; None without one."""
    config_dir: str | None
    """The folder of -cd, with yaml files besides conf/; None without one."""

    @property
    def config_flags(self) -> tuple[str, ...]:
        """The flags that name the user's own yaml files, with their values."""
        given = {
            "--config-path": self.config_path,
            "--config-name": self.config_name,
            "--config-dir": self.config_dir,
        }
        return tuple(word for flag, value in given.items() if value for word in (flag, value))


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Parse the arguments; raises UsageError for an invalid flag, and for text not in UTF-8."""
    for argument in arguments:
        # Bytes that are not UTF-8 become surrogates, which no result can hold.
        if SURROGATE.search(argument):
            raise UsageError(f"{argument!r}: allowed: text in UTF-8")
    try:
        parsed = _parser().parse_intermixed_args(list(arguments))
    except UsageError as error:
        raise UsageError(describe_flag(str(error), arguments)) from None
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise UsageError("--resolve: allowed only with --cfg or --help")
    if parsed.cfg and parsed.info:
        raise UsageError(f"--cfg {parsed.cfg} --info {parsed.info}: allowed: one of them")
    values = vars(parsed)
    overrides = values.pop("overrides")
    flags: list[str] = []
    run_flags = ("run", "multirun", "config_path", "config_name", "config_dir")
    prints_info = any(value for name, value in values.items() if name not in run_flags)
    for name, value in values.items():
        # Hydra accepts only one of --cfg, --run, --multirun and similar flags.
        if value and not (prints_info and name in ("run", "multirun")):
            flags += [f"--{name.replace('_', '-')}", *([value] if isinstance(value, str) else [])]
    return CommandLine(
        flags=tuple(flags),
        overrides=read_spellings(overrides),
        is_sweep=parsed.multirun,
        prints_info=prints_info,
        config_path=parsed.config_path,
        config_name=parsed.config_name,
        config_dir=parsed.config_dir,
    )


def prepare_completion() -> None:
    """Remove `-m` from COMP_LINE, because Hydra's shell completion can't parse it."""
    if line := os.environ.get("COMP_LINE"):
        words = [word for word in line.split(" ") if word not in ("-m", "--multirun")]
        os.environ["COMP_LINE"] = " ".join(words)


# argparse itself would print its usage and exit.
class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> _Parser:
    """A parser of Hydra's flags, https://hydra.cc/docs/advanced/hydra-command-line-flags."""
    parser = _Parser(prog=sys.argv[0], add_help=False)
    parser.add_argument("overrides", nargs="*")
    for flag in (("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",)):
        parser.add_argument(*flag, action="store_true")
    for flag in (("--run", "-r"), ("--multirun", "-m"), ("--shell-completion", "-sc")):
        parser.add_argument(*flag, action="store_true")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    for flag in (("--package", "-p"), ("--config-path", "-cp"), ("--config-name", "-cn")):
        parser.add_argument(*flag)
    for flag in (("--config-dir", "-cd"), ("--experimental-rerun",)):
        parser.add_argument(*flag)
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=INFO_VALUES)
    return parser


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse the overrides. Raises ConfigError for overrides that no job can have, and Hydra's
    exceptions for overrides that its grammar does not allow."""
    # Hydra's config loader lists the options to which the parser expands glob(*).
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    for override in parsed:
        _check_override(override)
    return parsed


def refuse_several(arguments: Sequence[str], refusal: str) -> None:
    """Raise UsageError for -m or several values of a setting, before a job is composed.

    A sweep that only an experiment turns on is not noticed here. arguments: the command line.
    refusal: the message, with {} in place of the overrides.
    """
    line = read_command_line(arguments)
    if line.prints_info:
        return
    is_sweep = line.is_sweep
    # If the line can't be parsed, composing it later reports the error.
    with suppress(HydraException):
        parsed = OverridesParser.create().parse_overrides([*line.overrides])
        is_sweep = is_sweep or any(each.is_sweep_override() for each in parsed)
    if is_sweep:
        raise UsageError(refusal.format(shlex.join(line.overrides)))


def _check_override(override: Override) -> None:
    """Raise ConfigError for an override that Hydra accepts and no job can have.

    Examples are the deletion of a setting that every job needs, and an empty path of a folder.
    """
    name = override.key_or_group
    if name in WITHOUT_EFFECT:
        raise ConfigError(f"{override.input_line}: it has no effect: {WITHOUT_EFFECT[name]}")
    if override.is_delete():
        if name in (*default_options(), *setting_names()):
            reason = f"every job has one; {name}=… changes it"
            raise ConfigError(f"{override.input_line}: {reason}")
    # Hydra merges a list or a dict into the configuration silently.
    elif isinstance(override.value(), list | dict | NoneType) and name in default_options():
        if isinstance(override.value(), list) and override.value() and takes_several(name):
            return
        allowed = f"allowed: one option; several need -m {name}=a,b"
        raise ConfigError(f"{override.input_line}: {allowed}")
    elif name.startswith("hydra.") and not _is_hydra_setting(name):
        text = f"{name}={override.get_value_element_as_str()}"
        raise ConfigError(unknown_setting(text))
    elif override.value() is None and name in group_names():
        reason = "allowed: one option; without it there is none"
        raise ConfigError(f"{override.input_line}: {reason}")
    elif override.value() == "" and name.rpartition(".")[2] in FOLDERS:
        raise ConfigError(f"{override.input_line}: allowed: the path of a folder")


def _is_hydra_setting(name: str) -> bool:
    """True for the dotted name of one of Hydra's settings, or of a key below a setting that is a
    dict."""
    # Hydra itself accepts any name that has a plus in front.
    kind: Any = HydraConf
    for part in name.split(".")[1:]:
        if not is_dataclass(kind):
            return True
        hints = get_type_hints(kind)
        if part not in hints:
            return False
        kind = hints[part]
    return True


def read_spelling(override: str) -> str:
    """Respell the override in Hydra's grammar.

    `~` becomes the home folder, `dataset=mine.A` becomes `dataset._target_=mine.A`, and torch's
    `collate_fn` becomes `collate`. `+experiment=name`, Hydra's usual spelling, loses its plus.

    >>> read_spelling("dataset=mine.A")
    'dataset._target_=mine.A'
    """
    name, equals, value = override.partition("=")
    if not equals:
        return override
    if name.startswith("+") and name.lstrip("+") in group_names():
        name = name.lstrip("+")
    name = TORCH_NAMES.get(name, name)
    if name in OPTION_METHODS and DOTTED_NAME.fullmatch(value) and value not in options_of(name):
        name = f"{name}._target_"
    return HOME_PATH.sub(_expand_quoted, f"{name}={value}")


def expand_homes(values: Any) -> Any:
    """The nested values, with ~/ replaced by the home folder at the beginning of each text."""
    if isinstance(values, dict):
        return {name: expand_homes(value) for name, value in values.items()}
    if isinstance(values, list):
        return [expand_homes(value) for value in values]
    return _expand(values) if isinstance(values, str) and values.startswith("~/") else values


def quote(text: str) -> str:
    """Quote the text, so Hydra parses it as one value even if it has commas or brackets.

    >>> quote("a, b")
    "'a, b'"
    """
    return QuotedString(text=text, quote=Quote.single).with_quotes()


def read_spellings(overrides: Iterable[str]) -> tuple[str, ...]:
    """Respell each override in Hydra's grammar, see read_spelling."""
    return tuple(read_spelling(override) for override in overrides)


def _expand_quoted(match: re.Match[str]) -> str:
    """The matched path, expanded, and quoted if Hydra's grammar requires it."""
    path = _expand(match[0])
    return path if PLAIN_PATH.fullmatch(path) else quote(path)


def _expand(path: str) -> str:
    """The path with the home folder in place of ~ or ~name."""
    try:
        return str(Path(path).expanduser())
    # The path begins with ~name, and there is no user of that name.
    except RuntimeError:
        return path
