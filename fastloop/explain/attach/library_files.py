"""Tell files of installed libraries and of Python itself from files of a script's own code."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from fastloop.core.installed_folders import INSTALLED_IN

STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
"""Beginnings of the paths of Python's own modules; runpy and others are compiled into it."""
SUFFIX = ".py"
"""End of the name of a file with Python code."""
INFO, RECORD = ".dist-info", "RECORD"
"""End of the name of the folder in which pip describes an installed package, and the list of the
package's files in it."""
OWN: set[str] = set()
"""Paths of the script that a command runs, or of the folder of its package: whatever is installed
together with one of these is not a library."""


def add_own_files(arguments: Sequence[str]) -> None:
    """Take the script of the command, or the package of -m, for the user's own code.

    arguments: [-m] <script> [its arguments], also behind a command such as torchrun.
    """
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-m":
            keep_own(_find_module(following))
        elif word.endswith(SUFFIX) or word == arguments[0]:
            # Python runs __main__.py of a folder, which may also have folders with libraries.
            name = "__main__.py" if os.path.isdir(word) else ""
            keep_own([os.path.abspath(os.path.join(word, name))])
        # What follows a script are its own arguments.
        if word.endswith(SUFFIX):
            break


def keep_own(paths: Iterable[str]) -> None:
    """Take these files, and files of these folders, for the user's own code."""
    OWN.update(paths)
    package_of.cache_clear()
    _list_installed.cache_clear()


def _find_module(name: str) -> list[str]:
    """The path of the module's file, or of the folder of its package; none if there is none."""
    # To import its package, as importlib does for a module in one, would run its code.
    top = name.partition(".")[0]
    for folder in (os.getcwd(), *sys.path):
        for path in (os.path.join(folder, top), os.path.join(folder, f"{top}{SUFFIX}")):
            if top and os.path.exists(path):
                return [os.path.abspath(path)]
    return []


def _is_own(path: str) -> bool:
    """True for a path of OWN, or one in a folder of it."""
    return any(path == own or path.startswith(f"{own}{os.sep}") for own in OWN)


def is_library(path: str, is_of_script: bool = True) -> bool:
    """True for a file of an installed package, or of Python itself. is_of_script: see
    `package_of`."""
    return bool(package_of(path, is_of_script)) or path.startswith(STANDARD)


def is_standard(path: str) -> bool:
    """True for a file of Python itself."""
    return path.startswith(STANDARD) and not package_of(path)


# Asked for each frame of a stack, whenever the place of a call is looked for.
@cache
def package_of(path: str, is_of_script: bool = True) -> str:
    """Name of the installed package, or of the module, that the file is a part of; empty if it
    belongs to none.

    is_of_script: True in the script's process, which imports from the folders of `sys.path`. False
    in another one, which does not know that path.
    """
    # Code that is not in a file, such as that of exec(), has a name in such brackets.
    if path.startswith("<"):
        return ""
    parts = path.split(os.sep)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in INSTALLED_IN:
            return parts[place + 1].removesuffix(SUFFIX)
    if _is_own(os.path.abspath(path)):
        return ""
    # `pip install --target` fills any folder, which is then on PYTHONPATH.
    folder = os.path.dirname(os.path.abspath(path))
    inside = os.path.basename(path)
    # Other folders are not listed, as this takes long if they are large and in a network.
    looked_at = _list_path() if is_of_script else None
    while os.path.dirname(folder) != folder:
        name = inside.partition(os.sep)[0].removesuffix(SUFFIX)
        is_imported_from = looked_at is None or folder in looked_at or _is_loaded(name, folder)
        if is_imported_from and inside in _list_installed(folder):
            return name
        inside = os.path.join(os.path.basename(folder), inside)
        folder = os.path.dirname(folder)
    return ""


def _is_loaded(name: str, folder: str) -> bool:
    """True if that module has been imported from the folder."""
    # The script may since have changed sys.path, or the working folder in which it was valid.
    path = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(path, str) and path.startswith(os.path.join(folder, name))


def _list_path() -> set[str]:
    """The folders from which this process imports."""
    folders = set()
    for each in [*sys.path]:
        # A script may put anything there, and may have removed its working folder.
        with suppress(OSError, TypeError, ValueError):
            folders.add(os.path.abspath(each))
    return folders


@cache
def _list_installed(folder: str) -> frozenset[str]:
    """The files that pip has put into the folder. The package of the script itself is left out,
    which may be installed there like any other."""
    files: set[str] = set()
    names: list[str] = []
    # A folder that can't be listed may still contain files that can be run.
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if name.endswith(INFO)]
    for name in names:
        record = os.path.join(folder, name, RECORD)
        try:
            with open(record, encoding="utf-8", errors="replace", newline="") as file:
                listed = {os.path.normpath(row[0]) for row in csv.reader(file) if row}
        # Any program may leave such a folder behind; pip writes the list.
        except (OSError, csv.Error):
            continue
        if not any(_is_own(os.path.join(folder, each)) for each in listed):
            files |= listed
    return frozenset(files)
