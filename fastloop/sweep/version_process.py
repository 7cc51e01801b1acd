"""Start the process of a version, and let it measure the version's jobs one trial at a time.

`fastloop check against=` compares two versions, each in such a process. Process and command
exchange JSON, as the other end may be another version of fastloop. The command sends the plan, then
{"trial": number} for each trial, and {"trial": null} at the end. The process answers with
{"ready": names of the jobs}, {"done": number} and {"ended": number of jobs}. If it fails, it sends
{"error": line} and ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from fastloop.core.exit_status import describe_exit
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load_results
from fastloop.core.types import UsageError

PROGRAM = Path(__file__).parents[1] / "cli" / "serve_version.py"
"""The program of a version's process, which composes its jobs. The program is run by its path,
because the version may be one of fastloop that does not have it."""
BASE, NEW = "base", "new"
"""Names of the two versions that are compared."""
END_S = 10
"""Seconds that a version's process gets to end by itself, before it is killed."""
Results = dict[str, Result]
"""The results of jobs, by name."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version to compare: the interpreter and the import path that its processes use."""

    label: str
    """The name in messages, such as `HEAD~1 (4f0c2d1)`."""
    python: str = sys.executable
    """The interpreter."""
    path: tuple[str, ...] = ()
    """Folders that come first on the import path."""
    tree: str = ""
    """The folder of the user's modules in this version."""
    forbidden_folder: str = ""
    """A folder from which this version must not import, except from its own `tree` inside it;
    empty: it may import from anywhere."""
    package: str = ""
    """The package of which this is a version; empty: it is a version of the user's modules."""
    package_version: str = ""
    """The version of the package that the processes have to see, such as 1.0.1; empty: any."""


@dataclass(frozen=True, kw_only=True)
class VersionProcess:
    """The process of a version."""

    version: Version
    folder: Path
    """Folder of the results."""
    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]
    """The output of the process."""

    def run_trial(self, number: int) -> None:
        """Run the trial of this number of all jobs."""
        self._send({"trial": number})
        self.receive()

    def end(self) -> None:
        """Let the process write its last results, and end."""
        self._send({"trial": None})
        self.receive()

    def results(self) -> Results:
        """The results of the jobs so far."""
        if not any(self.folder.rglob(RESULT_FILE)):
            return {}
        return {each.name: each for each in load_results(self.folder, self.version.label)}

    def receive(self) -> dict[str, Any]:
        """Receive the next message.

        Raises UsageError, with one line, if the process reports an error or has ended.
        """
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            message = {"error": self._describe_end()}
        if "error" in message:
            raise UsageError(f"{self.version.label}: {message['error']}")
        return message

    def _send(self, message: dict[str, Any]) -> None:
        # If the process has ended, the next `receive` reports it.
        with suppress(BrokenPipeError):
            self.connection.send_bytes(json.dumps(message).encode())

    def _describe_end(self) -> str:
        """The exit status of the process, and the last line of its output."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        ended = f"its process has ended, {describe_exit(self.process.wait())}"
        return f"{ended}: {lines[-1]}" if lines else ended


@contextmanager
def start_version(
    version: Version, words: Sequence[str], folder: Path, *, is_base: bool
) -> Iterator[VersionProcess]:
    """Start the process of a version; its first message says that it is ready.

    The process ends with the context, and when this process is killed. words: the arguments of
    `fastloop run` that describe the jobs. folder: the folder for its results. is_base: True if the
    process reports an error when it can run none of the jobs.
    """
    ours, theirs = Pipe(duplex=True)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(version.path)}
    with ours, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            # -P keeps the working folder off the import path. multiprocessing passes -P on to its
            # server, which would otherwise import a fastloop that is in the working folder.
            [version.python, "-P", str(PROGRAM), str(theirs.fileno())],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            # In a session of its own the process gets no Ctrl-C from the terminal: the command's
            # process handles the signal.
            start_new_session=True,
        )
        try:
            theirs.close()
            started = VersionProcess(
                version=version, folder=folder, process=process, connection=ours, log=log
            )
            started._send(
                {
                    "words": [*words],
                    "folder": str(folder),
                    "is_base": is_base,
                    "package": version.package,
                    "package_version": version.package_version,
                    "tree": version.tree,
                    "forbidden_folder": version.forbidden_folder,
                }
            )
            yield started
        finally:
            ours.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and kill it if it has not ended after END_S."""
    # On this signal the process ends its trial, and then itself.
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
