"""The temporary folder of a script's records, and the removal of abandoned folders."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "fastloop-attach-"
NAME = re.compile(rf"{PREFIX}(\d+)-\w+")
"""Name of a folder, with the id of the process that has made it."""


def make_record_folder() -> Path:
    """Make a temporary folder for this process; remove folders of commands and scripts that have
    ended."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _remove_abandoned(parent: Path) -> None:
    folders = [(path, NAME.fullmatch(path.name)) for path in parent.glob(f"{PREFIX}*")]
    abandoned = [path for path, name in folders if name and not psutil.pid_exists(int(name[1]))]
    if not abandoned:
        return
    # A script that has outlived its killed command still writes to the folder in its arguments.
    used = {word for process in psutil.process_iter(["cmdline"]) for word in _words(process)}
    for path in abandoned:
        # In a shared temporary folder anyone may have made a link of this name.
        if str(path) not in used and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _words(process: psutil.Process) -> list[str]:
    # psutil gives None if the words can't be read.
    return process.info["cmdline"] or []
