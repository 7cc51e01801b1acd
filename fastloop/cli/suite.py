"""fastloop suite: measure every loader on named workloads; check and show the files of results.

    fastloop suite [quick|full] [round=<name>] [machine=<name>] [results=results]
                   [workloads=<name>,...] [loaders=<name>,...] [trials=<number>]
                   [seconds=<number>] [wait=true|allow_concurrent=true]
    fastloop suite claims [the same settings without loaders; workloads names claims]
    fastloop suite verify <file>...
    fastloop suite site [results=results] [page=results/index.html] [code=<address>]
    fastloop suite list

quick, of ten loaders, takes about six minutes on two cores, and full (the default) about
forty. Each workload is a sweep of its own, kept in the outputs folder: the same command
goes on with a suite that was ended, and measures nothing twice. The results are written to
<results>/<round>/<machine>.json after each workload. The default round is the month, the
default machine the processor and its cores. No round of a workload begins after seconds=
(quick 60, full 300, claims 120): with trials= it gives more windows, and narrower intervals.

claims measures the claims of loaders' pages, each by two jobs under the condition that the
page states, into <results>/<round>/claims/<machine>.json.

verify recomputes every figure from the timed windows, and compares each raw value with its
seal, a digest in the file. It names each field that was altered. The exit status is 1 if
there is one, and 2 if a file can't be read.

site writes one page of all rounds in the folder, and claims.html beside it. code= is the
address that precedes the path of an option's code; the default is the folder above that of
the page. list names the workloads, and the claims with their sources.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli.arguments import parse_settings
from fastloop.core.types import UsageError
from fastloop.processes.signals import restore_default_signals

if TYPE_CHECKING:
    from fastloop.suite.measure_round import MeasuredWorkload, SuiteRun
    from fastloop.suite.suite_file import SuiteFile
    from fastloop.suite.workloads import Scope

SCOPES: dict[str, Scope] = {"quick": "quick", "full": "full", "claims": "claims"}
"""Subcommand that measures -> its scope, the kind of a round in a file of results."""
SWEEP_SETTINGS = ("trials", "seconds", "wait", "allow_concurrent")
"""Settings of `fastloop run` that are passed on to the sweep of each workload."""
CLAIMS_SETTINGS = {"round": "", "machine": "", "results": "results", "workloads": ""}
"""Settings of `fastloop suite claims`, with their defaults."""
SUITE_SETTINGS = CLAIMS_SETTINGS | {"loaders": ""}
"""Settings of `fastloop suite quick` and `full`, with their defaults."""
SITE_SETTINGS = {"results": "results", "page": "", "code": ".."}
"""Settings of `fastloop suite site`, with their defaults."""
CLAIMS_PAGE = "claims.html"
"""File name of the page of claims, which is in the same folder as the page of the rounds."""
ALTERED, UNREADABLE = 1, 2
"""Exit statuses of verify. ALTERED: a file was altered. UNREADABLE: no file was altered, but a file
can't be read, or no file was named."""
LONGEST_NAME = 100
"""Maximum number of characters in the name of a round or a machine, which is part of a path."""


def main() -> None:
    """Run the subcommand that the first argument names, or `full` if no subcommand is named.

    Prints one line and exits with status 1 on a UsageError. Exits with the status of `_verify`
    after verify.
    """
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(__doc__, end="")
        return
    try:
        is_named = bool(arguments) and "=" not in arguments[0]
        command, *rest = arguments if is_named else ["full", *arguments]
        if command in SCOPES:
            _measure(SCOPES[command], rest)
        elif command == "verify":
            sys.exit(_verify(rest))
        elif command == "site":
            _write_site(rest)
        elif command == "list":
            _list(rest)
        else:
            commands = ", ".join((*SCOPES, "verify", "site", "list"))
            raise UsageError(f"suite {' '.join(arguments)}: allowed: {commands}")
    except UsageError as error:
        sys.exit(str(error))
    finally:
        restore_default_signals()


def _measure(scope: Scope, arguments: Sequence[str]) -> None:
    """Measure the workloads of a scope, and write the file of results after each.

    Raises UsageError for a wrong setting among the arguments, if the file can't be written or must
    not be replaced, and as `measure_workloads` does.
    """
    from fastloop.core.outputs_folder import refuse_unwritable
    from fastloop.suite.build_suite_file import build_suite_file, machine_name
    from fastloop.suite.measure_round import measure_workloads
    from fastloop.suite.suite_file import check_replaceable, save_suite

    own = CLAIMS_SETTINGS if scope == "claims" else SUITE_SETTINGS
    allowed = own | dict.fromkeys(SWEEP_SETTINGS, "")
    given = parse_settings(arguments, allowed, may_be_empty=False)
    round_name = _check_name("round", given["round"] or _present_month())
    run = _suite_run(scope, round_name, given)
    machine = _check_name("machine", given["machine"] or machine_name())
    folder = Path(given["results"]) / round_name
    path = (folder / "claims" if scope == "claims" else folder) / f"{machine}.json"
    # The file is checked before anything is measured, because measuring takes minutes.
    refuse_unwritable(f"results={given['results']}: {path}", path)
    check_replaceable(path, scope, is_whole=run.is_whole)
    # The settings of `fastloop suite` are removed, because compose_requests reads sys.argv, too,
    # and does not know them.
    sys.argv[1:] = []
    measured = []
    for each in measure_workloads(run):
        measured.append(each)
        _print_reasons(each)
        document = build_suite_file(run, round_name, measured)
        save_suite(document, path)
        filled = sum(cell.figures is not None for cell in document.cells)
        print(f"{path}: {filled} of {len(document.cells)} cells have figures", flush=True)
        if scope == "claims":
            _print_judgement(each.workload.name, document)


def _suite_run(scope: Scope, round_name: str, given: dict[str, str]) -> SuiteRun:
    """The workloads, loaders and settings to measure; raises UsageError for a wrong value.

    given: the values of CLAIMS_SETTINGS or SUITE_SETTINGS, and of SWEEP_SETTINGS.
    """
    from fastloop.core.outputs_folder import outputs_folder
    from fastloop.suite.claims import CLAIMED_WORKLOADS
    from fastloop.suite.measure_round import SuiteRun
    from fastloop.suite.workloads import WORKLOADS, choose_workloads

    _check_trials(given["trials"])
    _check_seconds(given["seconds"])
    all_workloads = CLAIMED_WORKLOADS if scope == "claims" else WORKLOADS
    loaders = given.get("loaders", "")
    return SuiteRun(
        scope=scope,
        folder=outputs_folder() / "suite" / round_name / scope,
        workloads=choose_workloads(given["workloads"], all_workloads),
        all_workloads=all_workloads,
        loaders=tuple(loaders.split(",")) if loaders else (),
        changes=tuple(f"{name}={given[name]}" for name in SWEEP_SETTINGS if given[name]),
    )


def _print_reasons(measured: MeasuredWorkload) -> None:
    """Print the reason why each row of a workload did not run, if none of the rows has run."""
    # A sweep prints these reasons itself. If no row can run, there is no sweep.
    if not any(row.result for row in measured.rows):
        for row in measured.rows:
            print(f"{measured.workload.name}, {row.row.label}: {row.reason}", flush=True)


def _print_judgement(name: str, document: SuiteFile) -> None:
    """Print a line that says whether the measured figures agree with the claim of this name."""
    from fastloop.suite.claims import CLAIMS, describe_judgement, judge

    (claim,) = [claim for claim in CLAIMS if claim.name == name]
    print(describe_judgement(judge(claim, document)), flush=True)


def _present_month() -> str:
    """The present month in UTC, such as 2026-11."""
    import numpy as np

    from fastloop.core.spans import wall_ms

    return str(np.datetime64(wall_ms(), "ms").astype("datetime64[M]"))


def _check_name(setting: str, name: str) -> str:
    """Return the name of a round or a machine; raises UsageError if it can't be part of a path.

    setting: `round` or `machine`, for error messages.
    """
    is_plain = all(letter.isalnum() or letter in "._-" for letter in name)
    # A name such as `..` would lead to another folder.
    if not is_plain or not name.strip("."):
        raise UsageError(
            f"{setting}={name}: allowed: letters, digits, dots, dashes, underscores; not dots alone"
        )
    if len(name) > LONGEST_NAME:
        raise UsageError(f"{setting}={name}: allowed: at most {LONGEST_NAME} characters")
    return name


def _check_trials(text: str) -> None:
    """Raise UsageError unless the text is empty or a number of trials."""
    # trials=auto is refused, because a sweep would then test its trials after every few rounds.
    # With each further test, more loaders of equal speed get different ranks by chance.
    if text and not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"trials={text}: allowed: a number from 1 on")


def _check_seconds(text: str) -> None:
    """Raise UsageError unless the text is empty or a number of seconds."""
    try:
        is_allowed = not text or 0 < float(text) < math.inf
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise UsageError(f"seconds={text}: allowed: a number above 0")


def _verify(names: Sequence[str]) -> int:
    """Print the altered fields of each file.

    Returns the exit status: ALTERED, UNREADABLE, or 0 if every file is as it was written.
    """
    from fastloop.core.text import printable
    from fastloop.suite.suite_file import load_suite
    from fastloop.suite.verify_file import find_problems

    if not names:
        print("suite verify: allowed: one or more files of fastloop suite", file=sys.stderr)
        return UNREADABLE
    is_altered = False
    is_unreadable = False
    for name in names:
        try:
            document = load_suite(Path(name))
        except UsageError as error:
            print(error, file=sys.stderr)
            is_unreadable = True
            continue
        problems = find_problems(document)
        is_altered = is_altered or bool(problems)
        shown = printable(name)
        for problem in problems:
            print(f"{shown}: {problem}", file=sys.stderr)
        if not problems:
            print(f"{shown}: every figure of {len(document.cells)} cells follows from its windows")
    if is_altered:
        return ALTERED
    return UNREADABLE if is_unreadable else 0


def _write_site(arguments: Sequence[str]) -> None:
    """Write one page of all rounds and one of all claims, and print the paths of the pages.

    A page without anything to show is not written. Raises UsageError for a wrong setting among the
    arguments, and if the folder of results has no file.
    """
    from fastloop.core.atomic_files import write_text
    from fastloop.core.outputs_folder import refuse_unwritable
    from fastloop.core.spans import wall_ms
    from fastloop.suite.claims import render_claims
    from fastloop.suite.round_files import CLAIMS_FILES, load_rounds
    from fastloop.suite.site import render_site

    given = parse_settings(arguments, SITE_SETTINGS, may_be_empty=False)
    results = Path(given["results"])
    page = Path(given["page"] or results / "index.html")
    if page.name == CLAIMS_PAGE:
        raise UsageError(f"page={page}: that is the page of claims; allowed: another name")
    refuse_unwritable(f"page={page}", page)
    rounds, claims = load_rounds(results), load_rounds(results, CLAIMS_FILES)
    if not rounds and not claims:
        allowed = "allowed: a folder that fastloop suite has written to"
        raise UsageError(f"results={results}: no <round>/<machine>.json in it; {allowed}")
    if rounds:
        write_text(page, render_site(rounds, wall_ms(), given["code"], bool(claims)))
        print(page)
    if claims:
        claims_page = page.with_name(CLAIMS_PAGE)
        write_text(claims_page, render_claims(claims, page.name if rounds else ""))
        print(claims_page)


def _list(arguments: Sequence[str]) -> None:
    """Print the workloads, and the claims with their sources; raises UsageError for an argument."""
    from fastloop.suite.claims import CLAIMS
    from fastloop.suite.workloads import WORKLOADS

    if arguments:
        raise UsageError(f"suite list {' '.join(arguments)}: allowed: fastloop suite list")
    print("workloads of fastloop suite and suite quick:\n")
    for each in WORKLOADS:
        print(f"{each.name}: {each.title}\n  {' '.join(each.overrides)}")
    print("\nworkloads of fastloop suite claims:\n")
    for claim in CLAIMS:
        print(f"{claim.name}: {claim.says}\n  {claim.condition}; {claim.source}")
