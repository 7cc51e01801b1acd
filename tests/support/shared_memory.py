"""Files in /dev/shm, which all processes of the machine share, by the processes that use them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FILE = re.compile(r"/dev/shm/(\S+)$", re.M)
"""The end of a line of /proc/<pid>/maps, unless the file has been deleted."""


def mapped_names(pids: Iterable[int]) -> set[str]:
    """Names of the files that these processes have mapped; those that have ended have none."""
    names: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            names |= set(FILE.findall(Path(f"/proc/{pid}/maps").read_text()))
    return names
