"""fastloop check: measure the job of fastloop.yaml; fail if it is slower than a base.

    fastloop check against=<version> [package=<name>] [job="<arguments>"]
                   [fail_above=2] [seconds=540] [markdown=<file>]
    fastloop check [file=fastloop.yaml] [record=true]

With against= both versions are measured now, on this machine, in turn. The version is
a commit, tag or branch of your repository, a folder, the path of a wheel, or with
package=<name> one of its versions, such as 1.0.1. Rounds end as soon as it is known
whether the new version is slower; with 5 % noise, a version that takes 1.05 times as
long is found. job= replaces the job of the file, and markdown= writes a comment for a
pull request.

Without against= the base is a recorded one. The file is part of your repository, and
so is the base that record=true writes:

    job: dataset=digits loader=raw num_workers=2   # arguments of fastloop run
    fail_above: 10             # allowed regression in percent; 2 with against=
    measure: seconds           # or limit_fraction: relative to the machine's limit
    base: fastloop-base.json   # next to this file
    allow: []                  # differences that do not end a check: machine,
                               # versions, data, cache

A job counts as slower if it is slower by more than fail_above percent and beyond noise
(the whole 95 % interval of the ratio is above 1, and a t test agrees), in two
measurements in a row. The kind of change is printed: environment, data or speed. The
exit status is

- 0 if no job is slower;
- 1 if a job is slower, or no longer finishes;
- 2 if the environment differs from the base's: processor, cores, devices, versions
  of Python and the libraries, or the state of the page cache;
- 3 if the data differs, or the epochs;
- 4 if there is no answer: too few trials, no base, a job of the base that the file
  does not measure, a wrong setting.

With against= it is 0, 1, 3 or 4.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli import check_versions
from fastloop.cli.arguments import parse_settings
from fastloop.config.catalogue import overridable_names
from fastloop.config.check_files import (
    CheckSettings,
    base_path,
    check_base_path,
    load_base,
    read_check_file,
    save_base,
    withheld_environment,
)
from fastloop.config.compose import compose_all
from fastloop.config.hydra_launcher import refuse_launcher
from fastloop.core.outputs_folder import hide_from_git, remove_unused
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load_results
from fastloop.core.types import SignalExit, UsageError
from fastloop.processes.command_endings import exit_on_system_error
from fastloop.processes.signals import exit_if_signalled, restore_default_signals
from fastloop.reporting.check_verdict import (
    CheckStatus,
    CheckVerdict,
    Results,
    check_conditions,
    check_speed,
)

if TYPE_CHECKING:
    from fastloop.sweep.request import JobRequest

DEFAULTS = {"file": "fastloop.yaml", "record": "false", "job": ""} | check_versions.DEFAULTS


def main() -> None:
    """Record the base, or check the job; exits with the status of the outcome."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    try:
        # CI runs a check in a clone of the repository. Its git status should stay clean.
        with exit_on_system_error(status=CheckStatus.NOT_JUDGED), hide_from_git():
            _run()
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(CheckStatus.NOT_JUDGED)
    finally:
        restore_default_signals()


def _run() -> None:
    """Check against another version, record a base, or check against the recorded base."""
    _refuse_settings_of_job(sys.argv[1:])
    given = parse_settings(sys.argv[1:], DEFAULTS, may_be_empty=False)
    if given["record"] not in ("true", "false"):
        raise UsageError(f"record={given['record']}: allowed: true, false")
    path = Path(given["file"])
    _refuse_without_job(given, path)
    if given["against"]:
        sys.exit(_check_versions(given, path))
    _refuse_without_against(given)
    settings = read_check_file(path)
    base = base_path(path, settings)
    if given["record"] == "true":
        _record(settings, base)
        return
    checked = _check(settings, load_base(base))
    print("\n".join(checked.lines))
    sys.exit(checked.status)


def _refuse_settings_of_job(arguments: Sequence[str]) -> None:
    """Raise UsageError if the arguments contain settings of a job, which belong elsewhere.

    The message says where: in the file, or inside job=.
    """
    known = {name.partition(".")[0] for name in overridable_names()} - DEFAULTS.keys()
    words = [each for each in arguments if "=" in each and _first_name(each) in known]
    if not words:
        return
    job = next((each.removeprefix("job=") for each in arguments if each.startswith("job=")), "")
    whole = shlex.quote(" ".join(filter(None, [job, shlex.join(words)])))
    name = shlex.join(words)
    if any(each.startswith("against=") for each in arguments):
        raise UsageError(f"{name}: a setting of the job: allowed: inside job=, as job={whole}")
    raise UsageError(
        f"{name}: a setting of the job: allowed: in the file, as  job: {whole}  or, with against=, "
        f"inside job=, as job={whole}"
    )


def _first_name(argument: str) -> str:
    """The name of a setting up to its first dot or @, without Hydra's + and ~ before it."""
    return re.split(r"[.@=]", argument.lstrip("+~"), maxsplit=1)[0]


def _refuse_without_job(given: dict[str, str], path: Path) -> None:
    """Raise UsageError if nothing names a job: no job=, and no file of the usual name."""
    # If the command line names another file, the file is read later, and reported if it is missing.
    if given["job"] or given["file"] != DEFAULTS["file"] or path.is_file():
        return
    example = '"dataset=digits loader=raw"'
    raise UsageError(
        f"check: no job is named; allowed: a file {path} with the line  job: {example}  or, with "
        f"against=, job={example}"
    )


def _check_versions(given: dict[str, str], path: Path) -> CheckStatus:
    """Compare the version of against= with the present one, and return the exit status.

    given: the settings of the command line. path: fastloop.yaml, which may be missing with job=.
    """
    if given["record"] == "true":
        raise UsageError(
            "record=true with against=: allowed: one of them, because against= records no base"
        )
    # With job= no file is needed. If one exists, its fail_above still applies.
    job = given["job"]
    settings = read_check_file(path) if path.is_file() or not job else CheckSettings(job=job)
    settings = replace(settings, job=job) if job else settings
    try:
        arguments = settings.arguments
    except ValueError as error:
        raise UsageError(f"job={job}: {error}") from None
    return check_versions.check_versions(given, arguments, settings.fail_above)


def _refuse_without_against(given: dict[str, str]) -> None:
    """Raise UsageError for a setting that has an effect only with against=."""
    for name, default in ({"job": ""} | check_versions.DEFAULTS).items():
        if given[name] != default:
            raise UsageError(f"{name}={given[name]}: allowed: with against=")


def _record(settings: CheckSettings, base: Path) -> None:
    """Measure the job, and write its results as the base."""
    check_base_path(base)
    results = _measure(settings)
    for name, result in results.items():
        if result.status != "FINISHED":
            raise UsageError(f"{name}: {result.status_reason}; no base is recorded")
    save_base([*results.values()], base)
    print(f"recorded: {base}")


def _check(settings: CheckSettings, base: Results) -> CheckVerdict:
    """Compare the job with the base; a regression counts only if it is measured twice in a row."""
    # The environment is compared before anything is measured, which may take minutes.
    if checked := check_conditions(_here(base), settings.allow):
        return checked
    first = _compare(settings, base)
    if not first.slower:
        return first
    print("\n".join((*first.lines, "measuring once more, as a busy minute may have caused it")))
    again = _compare(settings, base)
    # The second measurement is the answer, with one exception: if both find slower jobs, and none
    # in common, both were noise.
    if first.slower & again.slower or again.status != CheckStatus.SLOWER:
        return again
    lines = (*again.lines, "speed: a different job was slower in each measurement")
    return CheckVerdict(status=CheckStatus.NOT_JUDGED, lines=lines)


def _here(base: Results) -> dict[str, tuple[Result, Result]]:
    """Name -> (the result of the base, the same result with the environment of this machine)."""
    from fastloop.core.machine import describe_machine

    here = describe_machine()
    return {name: (each, replace(each, environment=here)) for name, each in base.items()}


def _compare(settings: CheckSettings, base: Results) -> CheckVerdict:
    """Measure the job, and compare the results with the base."""
    new = _measure(settings)
    pairs = {name: (base[name], new[name]) for name in base if name in new}
    checked = check_conditions(pairs, settings.allow)
    return checked or check_speed(base, new, settings.measure, settings.percent_allowed)


def _measure(settings: CheckSettings) -> Results:
    """Measure the job, and return name -> result. Exits if there is no result; `measure` has then
    printed the reason."""
    from fastloop.sweep.measure import measure

    requests = _compose(settings)
    folder = requests[0].sweep_folder
    try:
        measure(requests)
        exit_if_signalled()
        if not any(folder.rglob(RESULT_FILE)):
            sys.exit(CheckStatus.NOT_JUDGED)
        return {each.name: each for each in load_results(folder, "job")}
    finally:
        remove_unused(folder)


def _compose(settings: CheckSettings) -> list[JobRequest]:
    """Compose the job, without access to environment variables; exits if it can't be composed."""
    sys.argv[1:] = settings.arguments
    try:
        with withheld_environment():
            requests = compose_all(refuse_launcher("check"))
    except SignalExit:
        raise
    # `compose_all` has printed the reason. Its exit status 1 would mean a slower job here.
    except SystemExit:
        sys.exit(CheckStatus.NOT_JUDGED)
    if not requests or requests[0].is_done:
        allowed = "arguments with which fastloop run measures on this machine"
        raise UsageError(f"job: {settings.job}: allowed: {allowed}")
    return requests
