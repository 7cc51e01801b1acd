"""Files of installed libraries and of Python itself, unlike those of a script's own code."""

from __future__ import annotations

import csv
import os
from contextlib import suppress
from functools import cache

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages."""
STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
"""Beginnings of the paths of Python's own modules; runpy and others are compiled into it."""
SUFFIX = ".py"
INFO, RECORD = ".dist-info", "RECORD"
"""End of the name of the folder in which pip describes an installed package; the list of the
package's files in that folder."""


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
    """The files that pip has put into the folder; and the names of packages without such a list."""
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
                files |= {os.path.normpath(row[0]) for row in csv.reader(file) if row}
        except (OSError, csv.Error):
            packages.add(name.partition("-")[0])
    return frozenset(files), frozenset(packages)
