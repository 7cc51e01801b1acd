"""Find the reason why pip has failed, in one line of its output."""

from __future__ import annotations

import os
import re

from fastloop.core.text import shorten_words

NOT_FOUND = ("Could not find a version", "No matching distribution")
"""Beginnings of pip's errors about a package that it has not found in its index."""
IGNORED_VERSIONS = "ignored the following"
"""Beginning of pip's errors about versions that it has left out; these come before the reason."""
VERSIONS_FOUND = re.compile(r" \(from versions: (.*)\)")
"""The part of an error that lists the versions which exist."""
NUM_SHOWN = 3
"""Number of existing versions that are named if the requested version does not exist."""
NO_INDEX = "PIP_NO_INDEX"
"""Name of the environment variable that keeps pip from asking its index."""
OFF_VALUES = ("", "0", "f", "false", "n", "no", "off")
"""Values of this variable, in lower case, with which pip asks its index all the same."""


def find_reason(output: str) -> str:
    """The reason why pip has failed, in one line.

    If a build has failed, the reason is the last line of the build's output. Otherwise the reason
    is pip's first error other than one about ignored versions, with the newest versions in place of
    all that exist. If there is no error, the reason is the last line. output: all lines that pip
    has printed.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "[end of output]" in lines:
        return shorten_words(f"its build failed: {lines[lines.index('[end of output]') - 1]}")
    marked = [line for line in lines if line.lower().startswith("error:")]
    found = [re.sub("^error: *", "", line, flags=re.I) for line in marked]
    errors = [line for line in found if not line.lower().startswith(IGNORED_VERSIONS)]
    line = (errors or found or lines[-1:] or ["pip has failed without a message"])[0]
    reason = shorten_words(VERSIONS_FOUND.sub("", line))
    return f"{reason}{_explain_absence(line, lines)}" if reason.startswith(NOT_FOUND) else reason


def _explain_absence(error: str, lines: list[str]) -> str:
    """The text after an error about a missing version: the reason, and the versions that exist.

    Empty if neither is known. lines: the output of pip.
    """
    versions = VERSIONS_FOUND.search(error)
    existing = versions[1].split(", ") if versions and versions[1] != "none" else []
    shown = f"; the newest that exist: {', '.join(existing[-NUM_SHOWN:])}" if existing else ""
    if needed := _python_needed(error, lines):
        return f": it requires Python {needed}{shown}"
    no_index = os.environ.get(NO_INDEX, "")
    if no_index.lower() not in OFF_VALUES:
        remedy = "allowed: false, or a folder of wheels in PIP_FIND_LINKS that has it"
        return f"{shown}: {NO_INDEX}={no_index} keeps pip from its index; {remedy}"
    # If pip can't reach an index, its error says only that there is no such package. The broken
    # connection is in a warning, which pip prints even if its next attempt succeeds.
    is_unreached = any("connection broken by" in each for each in lines)
    return f"{shown}: pip can't reach its index" if is_unreached else shown


def _python_needed(error: str, lines: list[str]) -> str:
    """The versions of Python that the requested version of the package requires.

    Empty unless pip has left out the requested version because it requires another Python.
    """
    number = re.search(r"==([^\s,;]+)", error)
    if number is None:
        return ""
    entry = re.compile(rf"[:;] {re.escape(number[1])} Requires-Python ([^;]+)")
    needed = [entry.search(line) for line in lines if IGNORED_VERSIONS in line.lower()]
    return next((each[1].strip() for each in needed if each), "")
