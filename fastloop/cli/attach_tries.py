"""Run a script again for `fastloop attach --try`, with changes of its DataLoader."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli.attach_settings import COPY, TrySettings

if TYPE_CHECKING:
    from fastloop.explain.attach.findings import LoopFindings, ScriptFindings
    from fastloop.explain.attach.tried_changes import TriedLoop
    from fastloop.explain.change import Change


@contextmanager
def open_working_folder(settings: TrySettings) -> Iterator[Path]:
    """Yield the working folder, or with --copy a copy without the folders of LEFT_OUT.

    The copy is removed at the end of the context. Exits with 2 if it can't be made.
    """
    from fastloop.explain.attach.effects import LEFT_OUT

    if not settings.in_copy:
        yield Path.cwd()
        return
    with ExitStack() as stack:
        try:
            # The copy is a neighbour of the original, so paths such as ../data lead to the same
            # place.
            beside = tempfile.TemporaryDirectory(prefix=".fastloop-copy-", dir=Path.cwd().parent)
            name = stack.enter_context(beside)
            left_out = shutil.ignore_patterns(*LEFT_OUT)
            shutil.copytree(Path.cwd(), name, symlinks=True, ignore=left_out, dirs_exist_ok=True)
        except OSError as error:
            print(f"attach {COPY}: the working folder can't be copied: {error}", file=sys.stderr)
            sys.exit(2)
        yield Path(name)


def try_loop(
    effects: list[str],
    arguments: list[str],
    settings: TrySettings,
    findings: ScriptFindings,
    folder: Path,
    place: Path,
) -> None:
    """Try changes of the DataLoader of the loop that may save most, and print their savings.

    effects: lines about the effects of the observed run, such as files that it wrote. arguments:
    the script with its arguments. folder: the folder for the results. place: the folder in which
    the script runs.
    """
    from fastloop.core.types import Unsupported, UsageError
    from fastloop.explain.attach.changes_to_try import choose_changes
    from fastloop.explain.attach.findings import outside_s
    from fastloop.explain.attach.run_length import Budget, check_budget, choose_batches
    from fastloop.explain.attach.script_runner import ScriptEnded, ScriptRunner
    from fastloop.explain.attach.try_changes import try_changes
    from fastloop.processes.signals import exit_if_signalled

    found = find_loop_to_try(findings)
    if found is None:
        return
    budget = Budget(60 * settings.minutes)
    loopless_s = outside_s(findings)
    batches = choose_batches(found, budget, loopless_s)
    changes = choose_changes(found, batches)
    try:
        check_budget(found, batches, budget, loopless_s)
    except UsageError as error:
        print(f"fastloop: nothing was tried: {error}", file=sys.stderr)
        return
    _print_plan(found, changes, batches, budget.seconds)
    _print_effects(effects)
    if not settings.is_agreed and not _is_agreed():
        return
    try:
        runner = ScriptRunner(arguments, found, batches, place)
        tried = try_changes(runner, found, changes, budget, _report)
    except Unsupported as error:
        way = " in a copy of the working folder" if settings.in_copy else ""
        print(f"fastloop: nothing was tried{way}: {error}", file=sys.stderr)
        if not settings.in_copy and isinstance(error, ScriptEnded):
            print(f"  A script that goes on from its checkpoint needs {COPY}.", file=sys.stderr)
        return
    _write_tried(tried, folder)
    # Ctrl-C may have ended the rounds. The results are written first, and the command ends then.
    exit_if_signalled()


def find_loop_to_try(findings: ScriptFindings) -> LoopFindings | None:
    """The loop over a DataLoader in which a change of the DataLoader may save most.

    If no loop is over a DataLoader, or if no call was seen that makes this DataLoader, prints a
    line and returns None.
    """
    from fastloop.explain.attach.findings import find_most_to_gain

    found = find_most_to_gain([each for each in findings.loops if not each.facts.get("is_watched")])
    if found and found.facts["made_at"]:
        return found
    reason = "no loop is over a DataLoader"
    if found:
        reason = f"no call was seen to make the DataLoader of the loop at {found.facts['place']}"
    print(f"fastloop: nothing was tried: {reason}", file=sys.stderr)
    return None


def _print_plan(
    found: LoopFindings, changes: Sequence[Change], batches: int, budget_s: float
) -> None:
    """Print the loop and the changes that are to be tried.

    batches: number of the loop's batches in each run. budget_s: most seconds of all runs together.
    """
    print(
        f"\nTrying {len(changes)} changes of the DataLoader of the loop at "
        f"{found.facts['place']}: the script runs again, up to the loop's batch {batches}, for at "
        f"most {budget_s:.0f} s in all",
        *(f"  {each.name}" for each in changes),
        sep="\n",
        file=sys.stderr,
    )


def _print_effects(effects: list[str]) -> None:
    """Print the effects of the observed run outside of its processes, such as files that it wrote.
    Each further run may have the same effects."""
    nothing = "  It did not seem to write or remove files, connect or start programs."
    lines = [f"  The script {line}, and each run may again." for line in effects] or [nothing]
    print("\n".join(lines), file=sys.stderr)


def _is_agreed() -> bool:
    print("Run it again? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _report(line: str) -> None:
    print(line, file=sys.stderr)


def _write_tried(tried: TriedLoop, folder: Path) -> None:
    """Print the savings of the changes, and write them and the patch, if any, to the folder."""
    from fastloop.core.atomic_files import write_text
    from fastloop.explain.attach.tried_changes import PATCH, TRIED, to_json
    from fastloop.explain.attach.tried_text import format_tried

    patch = folder / PATCH if tried.patch else None
    print(f"\n{format_tried(tried, patch)}", file=sys.stderr)
    try:
        if patch:
            write_text(patch, tried.patch)
        write_text(folder / TRIED, to_json(tried))
    except OSError as error:
        print(f"fastloop: the changes are not written: {error}", file=sys.stderr)
