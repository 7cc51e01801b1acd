"""Compare two versions for `fastloop check against=`.

They may be versions of the user's modules, of a package, or of fastloop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli.arguments import parse_percent
from fastloop.config.check_files import withheld_environment
from fastloop.config.compose import compose_requirements
from fastloop.core.atomic_files import remove, write_text
from fastloop.core.outputs_folder import outputs_folder, refuse_unwritable
from fastloop.core.spans import wall_ms
from fastloop.core.types import MachineBusy, UsageError
from fastloop.reporting.check_verdict import CheckStatus

if TYPE_CHECKING:
    from fastloop.reporting.version_outcome import VersionOutcome
    from fastloop.sweep.version_source import VersionSource

DEFAULTS = {"against": "", "package": "", "seconds": "540", "fail_above": "", "markdown": ""}
"""Settings that have an effect only with against=, with their defaults."""
FAIL_ABOVE = 2.0
"""Allowed regression in percent, if neither the file nor the command line sets `fail_above`.
Smaller differences are not a reason to prefer a version."""
FOLDER = "check"
"""Name of the folder for the results of both versions, in the outputs folder."""
IMPORTED_LATER = ("fastloop.sweep.open_versions", "fastloop.sweep.machine_lock")
"""Modules that `check_versions` imports before it handles signals. During these imports, a signal
therefore ends the command at once."""


def check_versions(
    given: Mapping[str, str], arguments: Sequence[str], allowed_percent: float | None
) -> CheckStatus:
    """Compare the version that `against=` names with the present one, and return the exit status.

    The answer is printed, and with `markdown=` also written to that file. given: the settings of
    DEFAULTS by name. arguments: the job, as arguments of `fastloop run`. allowed_percent:
    `fail_above` of fastloop.yaml; None if it is not set there. Raises UsageError for a wrong
    setting, if another fastloop is measuring, and if one of the versions can't be measured.
    """
    for name in IMPORTED_LATER:
        import_module(name)
    from fastloop.processes.signals import handle_signals
    from fastloop.reporting.version_text import describe_versions, versions_markdown
    from fastloop.sweep.machine_lock import lock_machine
    from fastloop.sweep.version_source import find_source, with_requirements

    seconds = _parse_seconds(given["seconds"])
    markdown = _check_markdown(given["markdown"])
    allowed = FAIL_ABOVE if allowed_percent is None else allowed_percent
    fail_above = (
        parse_percent("fail_above", given["fail_above"]) if given["fail_above"] else allowed
    )
    source = find_source(given["against"], given["package"], Path.cwd())
    if source.package:
        with withheld_environment():
            source = with_requirements(source, compose_requirements(arguments))
    handle_signals()
    try:
        hint = "wait=true, a setting of the job, waits for it"
        with lock_machine("wait=true" in arguments, hint=hint):
            found = _measure(source, arguments, fail_above, seconds)
    except MachineBusy as error:
        raise UsageError(str(error)) from None
    print(describe_versions(found))
    if markdown:
        write_text(markdown, versions_markdown(found))
    return found.status


def _measure(
    source: VersionSource, arguments: Sequence[str], fail_above: float, seconds: float
) -> VersionOutcome:
    """Measure both versions, and return the outcome.

    fail_above: allowed regression in percent. seconds: time limit. If the comparison fails or is
    interrupted, its results are removed.
    """
    from fastloop.reporting.header import load_lines
    from fastloop.reporting.version_outcome import VersionOutcome
    from fastloop.sweep.compare_versions import compare_versions
    from fastloop.sweep.open_versions import open_versions
    from fastloop.sweep.version_process import BASE, NEW

    folder = outputs_folder() / FOLDER / f"{wall_ms()}-{os.getpid()}"
    is_complete = False
    try:
        with open_versions(source, Path.cwd(), folder) as versions:
            print(f"{versions[BASE].label} against {versions[NEW].label}", file=sys.stderr)
            compared = compare_versions(versions, arguments, folder, fail_above, seconds)
        is_complete = True
    finally:
        # The trials of an incomplete comparison are useless.
        if not is_complete:
            remove(folder)
            # rmdir fails for a folder that has other content.
            with suppress(OSError):
                folder.parent.rmdir()
                outputs_folder().rmdir()
    rounds = f"{compared.rounds} {'round' if compared.rounds == 1 else 'rounds'}"
    count = compared.trials_per_round
    trials = f"{count} {'trial' if count == 1 else 'trials'} of each"
    return VersionOutcome(
        base_label=versions[BASE].label,
        new_label=versions[NEW].label,
        base=compared.base,
        new=compared.new,
        changes=compared.changes,
        fail_above=fail_above,
        effort=f"{rounds} of {trials}, in {compared.seconds:.0f} s",
        load=load_lines([*compared.base.values(), *compared.new.values()]),
    )


def _parse_seconds(text: str) -> float:
    """Parse the seconds; raises UsageError unless they are a finite number above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"seconds={text}: allowed: a number of seconds above 0")
    return seconds


def _check_markdown(text: str) -> Path | None:
    """The path of markdown=; None if it is empty. Raises UsageError if it can't be written."""
    path = Path(text)
    if text and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(f"markdown={text}: allowed: the path of a file in a folder that exists")
    if text:
        refuse_unwritable(f"markdown={text}", path)
    return path if text else None
