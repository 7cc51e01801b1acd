"""Make the patch of a script that changes the call of its DataLoader, with notes and advice.

The module also collects the warnings of a FastLoader that takes the DataLoader's place.
"""

from __future__ import annotations

import difflib
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastloop.core.types import Unsupported
from fastloop.explain.attach.edit_call import edit_call, find_options
from fastloop.explain.attach.library_files import is_library
from fastloop.explain.change import Change

OTHER_ORDER = (
    "With workers that stay, DataLoader draws one number less from torch's generator in each later "
    "pass, so that a seeded script shuffles those passes otherwise than now, unless its sampler "
    "has a generator of its own"
)
OTHER_SUMS = (
    "With another number of threads torch adds long sums in another order, so that the last digits "
    "of losses may differ from those of now, even if the samples are the same"
)
OF_FORKS = (
    "Forked workers are copies of the script's process: they can't use CUDA if it does, and "
    "a lock that another thread of the script holds meanwhile is never released in them"
)
"""OTHER_ORDER, OTHER_SUMS and OF_FORKS are notes on effects of a change other than speed."""
DRAWING_SAMPLERS = ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")
"""torch's samplers that draw from its generator."""
ONE_PROCESS: Mapping[str, Any] = {"rank": 0, "world_size": 1}
"""The settings with which FastLoader reads the whole dataset in each process of a group, as
DataLoader does."""
LIBRARIES = {
    "transformers": {
        "num_workers": "TrainingArguments(dataloader_num_workers={})",
        "persistent_workers": "TrainingArguments(dataloader_persistent_workers={})",
        "prefetch_factor": "TrainingArguments(dataloader_prefetch_factor={})",
        "pin_memory": "TrainingArguments(dataloader_pin_memory={})",
    },
    "timm": {
        "num_workers": "create_loader(num_workers={}), --workers of train.py",
        "persistent_workers": "create_loader(persistent_workers={})",
        "pin_memory": "create_loader(pin_memory={}), --pin-mem of train.py",
    },
    "ultralytics": {"num_workers": "workers={}"},
}
"""Package of a library that makes DataLoaders -> argument of DataLoader -> the text that sets this
argument in the library."""
FASTLOADER_WORD = "FastLoader"
"""A word in each of FastLoader's warnings about dropped arguments. Warnings that DataLoader gives
as well do not contain this word."""


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
    made_at = facts["made_at"]
    takes = facts.get("takes")
    path, _, line = made_at.rpartition(":")
    of_results = _notes_on_results(facts, change)
    if is_library(path, is_of_script=False):
        return PatchedCall(advice=_library_advice(Path(path), line, change), notes=of_results)
    try:
        if path.startswith("<"):
            raise Unsupported("the code comes from no file")
        patch = patch_script(Path(path), int(line), change, Path.cwd(), takes)
        options = find_options(Path(path).read_text("utf-8"), int(line), change, takes)
    except (Unsupported, SyntaxError, OSError) as error:
        advice = f"There is no patch: {error}. Change the call at {made_at}: {change.name}"
        return PatchedCall(advice=advice, notes=of_results)
    notes = tuple(
        f"The call takes {name} from {expression}, which the patch replaces: if the script has an "
        "option for it, that does without a patch"
        for name, expression in options.items()
    )
    return PatchedCall(patch=patch, notes=(*notes, *of_results))


def _notes_on_results(facts: Mapping[str, Any], change: Change) -> tuple[str, ...]:
    """Sentences on effects of the change other than speed.

    The samples of the first pass over the DataLoader stay the same. Later passes or the results of
    the script may differ, and workers may fail in other ways.
    """
    notes: tuple[str, ...] = ()
    # When DataLoader starts workers, it draws a seed for them from the generator that shuffles.
    # Workers that stay are started once only.
    begins_to_stay = change.settings.get("persistent_workers") and not facts.get(
        "persistent_workers"
    )
    if begins_to_stay and facts.get("sampler") in DRAWING_SAMPLERS:
        notes += (OTHER_ORDER,)
    if change.forks_workers:
        notes += (OF_FORKS,)
    return notes if change.torch_threads is None else (*notes, OTHER_SUMS)


def _library_advice(path: Path, line: str, change: Change) -> str:
    """The advice for a DataLoader that a library makes: the arguments of the library to set.

    If no such argument is known, or if the change is to FastLoader, the advice names only the
    change.
    """
    arguments = next((LIBRARIES[name] for name in LIBRARIES if name in path.parts), {})
    settings = {name: value for name, value in change.settings.items() if name in arguments}
    known = [arguments[name].format(repr(value)) for name, value in settings.items()]
    if change.torch_threads is not None:
        known.append(f"torch.set_num_threads({change.torch_threads})")
    made = f"The DataLoader is made inside of a library, at {path.name}:{line}"
    if not known or change.is_fastloader:
        return f"{made}: it needs {change.name}"
    # The gain belongs to all settings together, so the advice also names the other settings.
    others = [
        f"{name}={value!r}" for name, value in change.settings.items() if name not in settings
    ]
    needs = f"; it also needs {', '.join(others)}" if others else ""
    return f"{made}: set {', '.join(known)}{needs}"


def show_command(patch: Path) -> str:
    """The command that applies a file with a patch in the folder of `patch_script`."""
    # Without -p1, git guesses the paths. It guesses wrong in a folder that contains a folder of the
    # same name, such as a package.
    return f"git apply -p1 {shlex.quote(str(patch))}"


@contextmanager
def collect_notes(notes: dict[str, None]) -> Iterator[None]:
    """A context in which a FastLoader is made. Its warnings about dropped arguments become keys of
    the notes, in their order."""
    with warnings.catch_warnings(record=True) as caught:
        # If the script has turned warnings into errors, a warning would end it.
        warnings.simplefilter("always")
        yield
    notes |= {text: None for each in caught if FASTLOADER_WORD in (text := str(each.message))}
