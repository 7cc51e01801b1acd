"""Parser of command lines in Hydra's grammar: flags and overrides in any order."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fastloop.config.spellings import read_spellings
from fastloop.config.suggestions import describe_flag
from fastloop.core.types import UsageError

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Arguments of a command, split into flags and overrides."""

    flags: tuple[str, ...]
    """Flags with their values."""
    overrides: tuple[str, ...]
    is_sweep: bool
    """True with -m."""
    prints_info: bool
    """True with --help, --cfg and other flags that make Hydra print information."""
    config_path: str | None
    config_name: str | None
    config_dir: str | None

    @property
    def arguments(self) -> list[str]:
        """All arguments, flags first."""
        # Hydra 1.3 rejects `loader=x -m trials=20`, because argparse takes all positional arguments
        # at once; Hydra 1.4 accepts it (facebookresearch/hydra#3133).
        return [*self.flags, *self.overrides]


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """The command line of these arguments; raises UsageError for an invalid flag."""
    try:
        parsed = _parser().parse_intermixed_args(list(arguments))
    except UsageError as error:
        raise UsageError(describe_flag(str(error), arguments)) from None
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise UsageError("--resolve: allowed only with --cfg or --help")
    values = vars(parsed)
    overrides = values.pop("overrides")
    flags: list[str] = []
    run_flags = ("run", "multirun", "config_path", "config_name", "config_dir")
    prints_info = any(value for name, value in values.items() if name not in run_flags)
    for name, value in values.items():
        # Hydra accepts only one of --cfg, --run, --multirun and similar flags
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


# argparse itself would print its usage and exit
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
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=INFO)
    return parser
