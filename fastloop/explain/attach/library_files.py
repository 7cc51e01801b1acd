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
"""Beginnings of the paths of Python's own modules. The second is that of modules which are compiled
into Python, such as runpy."""
SUFFIX = ".py"
"""End of the name of a file with Python code."""
INFO, RECORD = ".dist-info", "RECORD"
"""End of the name of the folder in which pip describes an installed package, and name of the list
of the package's files in that folder."""
OWN: set[str] = set()
"""Absolute paths of the script that a command runs, or of the folder of its package. A package that
pip has installed is not a library if one of its files is at such a path or below it."""


def add_own_files(arguments: Sequence[str]) -> None:
    """Take the script of the command, or the package of -m, for the user's own code.

    arguments: [-m] <script> [its arguments], also behind a command such as torchrun.
    """
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-m":
            keep_own(_find_module(following))
        elif word.endswith(SUFFIX) or word == arguments[0]:
            # Of a folder, Python runs __main__.py. Only this file counts as the user's own, because
            # the folder may also have folders with libraries.
            name = "__main__.py" if os.path.isdir(word) else ""
            keep_own([os.path.abspath(os.path.join(word, name))])
        # The words after a script are the script's own arguments.
        if word.endswith(SUFFIX):
            break


def keep_own(paths: Iterable[str]) -> None:
    """Take these files, and files of these folders, for the user's own code."""
    OWN.update(paths)
    package_of.cache_clear()
    _list_installed.cache_clear()


def _find_module(name: str) -> list[str]:
    """A list of the path of the module's file, or of its package's folder; empty if not found."""
    # To find a module, importlib would import its package, and so run the code of the package.
    top = name.partition(".")[0]
    for folder in (os.getcwd(), *sys.path):
        for path in (os.path.join(folder, top), os.path.join(folder, f"{top}{SUFFIX}")):
            if top and os.path.exists(path):
                return [os.path.abspath(path)]
    return []


def _is_own(path: str) -> bool:
    """True for a path in OWN, and for a file below such a path."""
    return any(path == own or path.startswith(f"{own}{os.sep}") for own in OWN)


def is_library(path: str, is_of_script: bool = True) -> bool:
    """True for a file of an installed package, or of Python itself.

    is_of_script: as in `package_of`.
    """
    return bool(package_of(path, is_of_script)) or path.startswith(STANDARD)


def is_standard(path: str) -> bool:
    """True for a file of Python itself."""
    return path.startswith(STANDARD) and not package_of(path)


# The results are cached, because this runs for each frame of a stack whenever the place of a call
# is looked for.
@cache
def package_of(path: str, is_of_script: bool = True) -> str:
    """Name of the installed package or module to which the file belongs; empty if there is none.

    is_of_script: True in the script's process, which imports from the folders of `sys.path`. False
    in another process, which does not know these folders.
    """
    # Code that is not in a file, such as that of exec(), has a name in angle brackets.
    if path.startswith("<"):
        return ""
    parts = path.split(os.sep)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in INSTALLED_IN:
            return parts[place + 1].removesuffix(SUFFIX)
    if _is_own(os.path.abspath(path)):
        return ""
    # `pip install --target` installs into any folder, which is then on PYTHONPATH. So all folders
    # above the file may be such a folder.
    folder = os.path.dirname(os.path.abspath(path))
    inside = os.path.basename(path)
    # Folders from which the script imports nothing are not listed, because that takes long if a
    # folder is large and in a network.
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
    """True if the module of this name has been imported from the folder."""
    # sys.path need not have that folder any more: since then, the script may have changed sys.path,
    # or the working folder to which a relative path in it refers.
    path = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(path, str) and path.startswith(os.path.join(folder, name))


def _list_path() -> set[str]:
    """Absolute paths of the folders from which this process imports."""
    folders = set()
    for each in [*sys.path]:
        # A script may put anything into sys.path, and may have removed its working folder.
        with suppress(OSError, TypeError, ValueError):
            folders.add(os.path.abspath(each))
    return folders


@cache
def _list_installed(folder: str) -> frozenset[str]:
    """Paths, relative to the folder, of the files that pip has installed into it.

    The script's own package may be installed there like any other, but its files are left out.
    """
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
        # pip writes the list, but another program may leave such a folder without one.
        except (OSError, csv.Error):
            continue
        if not any(_is_own(os.path.join(folder, each)) for each in listed):
            files |= listed
    return frozenset(files)
