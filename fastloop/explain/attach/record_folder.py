"""The temporary folder of a script's records, and those that killed commands have left."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "fastloop-attach-"
NAME = re.compile(rf"{PREFIX}(\d+)-\w+")
"""With the number of the process that has made the folder."""


def make_record_folder() -> Path:
    """A new temporary folder for this process; those whose commands and scripts are gone go."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _remove_abandoned(parent: Path) -> None:
    folders = [(path, NAME.fullmatch(path.name)) for path in parent.glob(f"{PREFIX}*")]
    abandoned = [path for path, name in folders if name and not psutil.pid_exists(int(name[1]))]
    if not abandoned:
        return
    # a script that has outlived its killed command still writes to the folder that it was given
    used = {word for process in psutil.process_iter(["cmdline"]) for word in _words(process)}
    for path in abandoned:
        if str(path) not in used and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _words(process: psutil.Process) -> list[str]:
    return process.info["cmdline"] or []  # None of a process whose words are unknown
