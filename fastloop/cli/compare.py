"""fastloop compare: compare two sets of results, and fail if a job has become slower.

    fastloop compare [[base=]<folder> [new=]<folder>] [fail_above=5]
                     [allow=machine,versions,data,cache]

A folder is a path, or <date>/<time> of a sweep in the outputs folder. Without folders the
newest sweep is compared with the newest one before it that shares a job with it. Jobs are
paired by name. The exit status is

- 1 if a job has become slower beyond noise (the whole 95 % interval of new / base
  is above 1, and a t test agrees at 5 %, corrected by Holm for the number of jobs and
  benchmarks) and by more than fail_above percent, or no longer finishes;
- 2 if the sets can't be compared: they share no job, or differ in machine, library
  versions, data or cache state, and allow= does not name that difference; or if a
  setting is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from fastloop.cli.arguments import parse_percent, parse_settings
from fastloop.core.outputs_folder import outputs_folder, sweep_folders
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load_results
from fastloop.core.types import UsageError
from fastloop.processes.command_endings import exit_on_system_error
from fastloop.reporting.comparison import (
    CONDITIONS,
    Pairs,
    check_comparable,
    find_changes,
    no_longer_finishes,
)
from fastloop.reporting.comparison_text import (
    comparison_answer,
    format_changes,
    other_differences,
)
from fastloop.reporting.header import load_lines

DEFAULTS = {"base": "", "new": "", "fail_above": "5", "allow": ""}
"""Settings of the command, with their defaults."""
FOLDERS = ("base", "new")
"""Settings that name a folder, in the order in which bare folders are given."""


# Other commands exit with 1 on an error of the system, but here 1 means that a job is slower.
@exit_on_system_error(status=2)
def main() -> None:
    """Print the comparison; exits with status 1 if a job is slower or no longer finishes.

    A job counts as slower only if it is so beyond noise, and by more than fail_above percent. Exits
    with status 2 if a setting is wrong, if the sets can't be compared, or on an error of the
    system, and with 0 otherwise.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    try:
        settings = parse_settings(_name_folders(sys.argv[1:]), DEFAULTS)
        fail_above = parse_percent("fail_above", settings["fail_above"])
        settings = _with_folders(settings)
        base, new = _load_set(settings["base"], "base"), _load_set(settings["new"], "new")
        pairs = {name: (base[name], new[name]) for name in base if name in new}
        check_comparable(pairs, base, new, _parse_allow(set(settings["allow"].split(",")) - {""}))
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(int(_print_comparison(base, new, pairs, fail_above)))


def _parse_allow(names: set[str]) -> set[str]:
    """Return the names if all are names of CONDITIONS; raises UsageError for any other name."""
    if unknown := sorted(names - CONDITIONS.keys()):
        shown = ",".join(sorted(names))
        allowed = ",".join(CONDITIONS)
        raise UsageError(f"allow={shown}: no such difference: {unknown[0]}; allowed: {allowed}")
    return names


def _print_comparison(
    base: dict[str, Result], new: dict[str, Result], pairs: Pairs, fail_above: float
) -> bool:
    """Print the load of the machines, the answer, the changes and other differences.

    base, new: name of a job -> result. fail_above: percentage by which a job may become slower.
    Returns True if a job has become slower beyond noise and by more than that, or no longer
    finishes.
    """
    changes = find_changes(pairs)
    for name, results in (("base", base), ("new", new)):
        for line in load_lines([*results.values()]):
            print(fill(f"{name}: {line}", 79) + "\n")
    print(fill(comparison_answer(pairs, changes, fail_above), 79) + "\n")
    print(format_changes(changes, fail_above))
    if len(changes) > 1:
        print(f"marked: beyond noise, corrected for {len(changes)} comparisons (Holm)\n")
    for line in other_differences(pairs, base, new):
        print(fill(line, 79, subsequent_indent="  ", break_long_words=False))
    is_broken = any(no_longer_finishes(before, after) for before, after in pairs.values())
    return is_broken or any(change.is_regression(fail_above) for change in changes)


def _name_folders(arguments: Sequence[str]) -> list[str]:
    """The arguments, with base= and new= put before bare folders.

    Raises UsageError unless there are two bare folders or none, and for bare folders beside base=
    or new=.
    """
    bare = [each for each in arguments if "=" not in each]
    if not bare:
        return [*arguments]
    is_named = any(each.startswith(("base=", "new=")) for each in arguments)
    if len(bare) != len(FOLDERS) or is_named:
        raise UsageError(f"compare {' '.join(bare)}: allowed: two folders, the base first")
    named = [f"{name}={folder}" for name, folder in zip(FOLDERS, bare, strict=True)]
    return [*named, *(each for each in arguments if "=" in each)]


def _with_folders(settings: dict[str, str]) -> dict[str, str]:
    """The settings with both folders.

    If neither is given, the folders are those of `_newest_pair`, and are printed.
    """
    if not settings["base"] and not settings["new"]:
        base, new = _newest_pair()
        print(f"base={base} new={new}")
        return settings | {"base": str(base), "new": str(new)}
    return settings | {name: _find_folder(settings[name]) for name in FOLDERS}


def _find_folder(text: str) -> str:
    """The path of the folder that the text names.

    If the text is no path that exists, but a sweep <date>/<time> of the outputs folder, the path of
    that sweep is returned; otherwise the text itself.
    """
    in_outputs = outputs_folder() / text
    is_sweep = bool(text) and not Path(text).exists() and in_outputs.is_dir()
    return str(in_outputs) if is_sweep else text


def _newest_pair() -> tuple[Path, Path]:
    """The folders of two sweeps, (base, new).

    `new` is the newest sweep with a finished job. `base` is the newest sweep before it that has a
    finished job of the same name. Raises UsageError if there are no such sweeps.
    """
    newest: tuple[Path, set[str]] | None = None
    for folder in reversed(sweep_folders()):
        # This sweep has no result yet.
        if not any(folder.rglob(RESULT_FILE)):
            continue
        results = load_results(folder, "new")
        names = {each.name for each in results if each.status == "FINISHED"}
        if newest and names & newest[1]:
            return folder, newest[0]
        if names and not newest:
            newest = folder, names
    missing = "two sweeps that share a job" if newest else "results"
    raise UsageError(f"compare: there are no {missing} in {outputs_folder()}; allowed: two folders")


def _load_set(folder: str, setting: str) -> dict[str, Result]:
    """Load the results in the folder, by the name of the job.

    setting: `base` or `new`, for error messages. Raises UsageError if the folder is an empty text,
    if a name occurs twice, and as `load_results` does.
    """
    if not folder:
        raise UsageError(f"{setting}=: it is empty; allowed: a folder with {RESULT_FILE} files")
    by_name: dict[str, Result] = {}
    for result in load_results(Path(folder), setting):
        if result.name in by_name:
            raise UsageError(
                f"{setting}={folder}: {result.name} is in two sweeps; allowed: the folder of one"
            )
        by_name[result.name] = result
    return by_name
