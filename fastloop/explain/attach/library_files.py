"""Files of installed libraries and of Python itself, unlike those of a script's own code."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages."""
STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
"""Beginnings of the paths of Python's own modules; runpy and others are compiled into it."""
SUFFIX = ".py"
INFO, RECORD, INSTALLER = ".dist-info", "RECORD", "INSTALLER"
"""End of the name of the folder in which pip describes an installed package; in that folder, the
list of the package's files, and the name of the program that has installed it."""
OWN: set[str] = set()
"""Paths of the script that a command runs, or of the folder of its package: whatever is installed
together with one of these is no library."""


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


def _has_own(package: str) -> bool:
    """True if a path of OWN is that of this package or module, or is in its folder."""
    return any(
        own in (package, f"{package}{SUFFIX}") or own.startswith(f"{package}{os.sep}")
        for own in OWN
    )


def is_library(path: str) -> bool:
    """True for a file of an installed package, or of Python itself."""
    return bool(package_of(path)) or path.startswith(STANDARD)


def is_standard(path: str) -> bool:
    """True for a file of Python itself."""
    return path.startswith(STANDARD) and not package_of(path)


# Asked for each frame of a stack, whenever the place of a call is looked for.
@cache
def package_of(path: str) -> str:
    """Name of the installed package, or of the module, that the file is a part of; empty if it
    belongs to none."""
    # Code that is no file, as that of exec(), has a name in such brackets.
    if path.startswith("<"):
        return ""
    parts = path.split(os.sep)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in INSTALLED:
            return parts[place + 1].removesuffix(SUFFIX)
    if _is_own(os.path.abspath(path)):
        return ""
    # `pip install --target` fills any folder, which is then on PYTHONPATH.
    folder = os.path.dirname(os.path.abspath(path))
    inside = os.path.basename(path)
    while os.path.dirname(folder) != folder:
        files, packages = _list_installed(folder)
        top = inside.partition(os.sep)[0].removesuffix(SUFFIX)
        if inside in files or top in packages:
            return top
        inside = os.path.join(os.path.basename(folder), inside)
        folder = os.path.dirname(folder)
    return ""


@cache
def _list_installed(folder: str) -> tuple[frozenset[str], frozenset[str]]:
    """The files that pip has put into the folder; and the names of packages without such a list.
    The package of the script itself is left out, which may be installed there as any other."""
    files: set[str] = set()
    packages: set[str] = set()
    names: list[str] = []
    # A folder that can't be listed may still contain files that can be run.
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if name.endswith(INFO)]
    for name in names:
        record = os.path.join(folder, name, RECORD)
        try:
            with open(record, encoding="utf-8", errors="replace", newline="") as file:
                listed = {os.path.normpath(row[0]) for row in csv.reader(file) if row}
        except (OSError, csv.Error):
            # Any program may leave such a folder behind; one that installs packages says so.
            package = name.partition("-")[0]
            if not _has_own(os.path.join(folder, package)) and os.path.exists(
                os.path.join(folder, name, INSTALLER)
            ):
                packages.add(package)
            continue
        if not any(_is_own(os.path.join(folder, each)) for each in listed):
            files |= listed
    return frozenset(files), frozenset(packages)
