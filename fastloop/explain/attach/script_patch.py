"""Make the patch of a script that changes the call of its DataLoader, for `git apply`.

If there can be no patch, the user gets advice to change the call by hand.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastloop.core.types import Unsupported
from fastloop.explain.attach.change_notes import list_effects
from fastloop.explain.attach.edit_call import edit_call, find_options
from fastloop.explain.attach.library_advice import advise_on_library
from fastloop.explain.attach.library_files import is_library
from fastloop.explain.change import Change


def patch_script(
    path: Path, line: int, change: Change, folder: Path, takes: Sequence[str] | None = None
) -> str:
    """The patch, for `git apply` in the folder, that makes the change at the call on that line.

    takes: the names of the arguments of a class derived from DataLoader, in their order; None: the
    arguments are DataLoader's. Raises Unsupported, with the reason, if the call can't be found or
    edited, or if the script lies outside of the folder or is not in UTF-8. Raises SyntaxError for a
    script with a syntax error, and OSError if the script can't be read.
    """
    # git changes no file through a symbolic link, so the links are resolved.
    path, folder = path.resolve(), folder.resolve()
    try:
        shown = path.relative_to(folder).as_posix()
    except ValueError:
        raise Unsupported(f"{path} lies outside of {folder}") from None
    # read_text() would replace the ends of lines, such as those of Windows.
    try:
        before = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise Unsupported(f"{path} is not in UTF-8") from None
    after = edit_call(before, line, change, takes)
    diff = difflib.unified_diff(_lines(before), _lines(after), f"a/{shown}", f"b/{shown}")
    # git expects a mark after a last line without an end; difflib writes none.
    return "".join(
        each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in diff
    )


def _lines(text: str) -> list[str]:
    """The lines of the text, with their ends."""
    # splitlines() would also split at a form feed, unlike git.
    return [*filter(None, re.split(r"(?<=\n)", text))]


def show_command(patch: Path) -> str:
    """The command that applies a file with a patch in the folder of `patch_script`."""
    # Without -p1, git guesses the paths. It guesses wrong in a folder that contains a folder of the
    # same name, such as a package.
    return f"git apply -p1 {shlex.quote(str(patch))}"


@dataclass(frozen=True, kw_only=True)
class PatchedCall:
    """The change of a call: a patch, or advice if there can be none."""

    patch: str = ""
    """The text of the patch, for `git apply`; empty if there is none."""
    advice: str = ""
    """A sentence on the call to change by hand; empty if there is a patch."""
    notes: tuple[str, ...] = ()
    """Sentences on values that the patch replaces, and on results that differ with it."""


def patch_call(facts: Mapping[str, Any], change: Change) -> PatchedCall:
    """The patch of the call that makes a DataLoader, or advice if there can be none.

    facts: the recorded facts about the DataLoader.
    """
    made_at, takes = facts["made_at"], facts.get("takes")
    name, _, line = made_at.rpartition(":")
    path, effects = Path(name), list_effects(facts, change)
    if is_library(name, is_of_script=False):
        return PatchedCall(advice=advise_on_library(path, line, change), notes=effects)
    try:
        if name.startswith("<"):
            raise Unsupported("the code comes from no file")
        patch = patch_script(path, int(line), change, Path.cwd(), takes)
        options = find_options(path.read_text("utf-8"), int(line), change, takes)
    except (Unsupported, SyntaxError, OSError) as error:
        advice = f"There is no patch: {error}. Change the call at {made_at}: {change.name}"
        return PatchedCall(advice=advice, notes=effects)
    return PatchedCall(patch=patch, notes=(*_describe_replaced(options), *effects))


def _describe_replaced(options: Mapping[str, str]) -> list[str]:
    """Sentences on values that a patch replaces. options: argument -> its expression in a call."""
    return [
        f"The call takes {name} from {expression}, which the patch replaces: if the script has an "
        "option for it, that does without a patch"
        for name, expression in options.items()
    ]
