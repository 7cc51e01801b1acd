"""Compiles the modules of packages that pip has installed while it installs others, on one core.

    python compile_installed.py <arguments of python, such as -m pip install torch>

It ends with pip's exit status. What is not compiled by then is left to others, such as compileall.
"""

from __future__ import annotations

import compileall
import csv
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

OWN_TESTS = re.compile(r"/tests?/")
"""In the path of a library's own test, which nothing imports."""
POLL_S = 0.5


def compile_beside(arguments: Sequence[str]) -> int:
    """Run python with these arguments, and compile meanwhile what it installs; return its exit
    status."""
    site = Path(sysconfig.get_path("purelib"))
    known = {*site.glob("*.dist-info")}
    with subprocess.Popen([sys.executable, *arguments]) as pip:
        # Ctrl-C reaches pip, too, which then ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return pip.wait(POLL_S)
            # pip writes this file after those of the package.
            complete = {path.parent for path in site.glob("*.dist-info/INSTALLER")} - known
            for info in complete:
                # pip gives the files of a package that it replaces other names, and removes them.
                # A list that can't be read is pip's concern, or nobody's.
                with suppress(OSError, ValueError, csv.Error):
                    _compile_package(info, pip)
            known |= complete


def _compile_package(info: Path, pip: subprocess.Popen[bytes]) -> None:
    """Compile the modules in the package's list of files, as long as pip runs."""
    with (info / "RECORD").open(newline="", encoding="utf-8") as record:
        names = [row[0] for row in csv.reader(record) if row]
    for name in names:
        if pip.poll() is not None:
            return
        if name.endswith(".py") and not OWN_TESTS.search(name):
            # quiet=2: some modules are for other versions of Python.
            compileall.compile_file(info.parent / name, quiet=2)


if __name__ == "__main__":
    sys.exit(compile_beside(sys.argv[1:]))
