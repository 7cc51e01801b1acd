"""Keep the log of a child process: its output if it must not print (a silent child), and the stack
of any process on request."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO

LAST_BYTES = 1 << 16
"""Maximum number of bytes of the log that are read at a time."""
STACK_ATTEMPTS, STACK_PAUSE_S = 10, 0.05
"""Number of times to wait for a process to write its stack, and the time of each wait."""


@dataclass(kw_only=True)
class ChildLog:
    """The output of a silent process, and the stack of any process on request.

    They are written to an unlinked file, so that a kill leaves nothing behind.
    """

    file: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _read_until: int = field(default=0, init=False)

    def writer(self) -> Connection:
        """A duplicate of the file's descriptor, which can be sent to another process."""
        return Connection(os.dup(self.file.fileno()), readable=False)

    def read(self) -> str:
        """Text written since the last call, at most its last LAST_BYTES bytes."""
        # file.read() would move the position in the file, which the writing process shares.
        size = os.fstat(self.file.fileno()).st_size
        start = max(self._read_until, size - LAST_BYTES)
        self._read_until = size
        return os.pread(self.file.fileno(), size - start, start).decode(errors="replace")

    def stack_of(self, pid: int, sentinel: int) -> str:
        """Stack of the process, innermost call first; empty if it does not respond.

        sentinel: handle that becomes ready when the process ends.
        """
        self.read()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        stack = ""
        for _ in range(STACK_ATTEMPTS):
            wait([sentinel], STACK_PAUSE_S)
            text = self.read()
            # faulthandler writes in pieces. The stack is complete if nothing was added since last
            # time.
            if stack and not text:
                break
            stack += text
        return stack

    def close(self) -> None:
        """Close the file, which deletes it."""
        self.file.close()


def write_log(writer: Connection, silent: bool) -> None:
    """From now on write the stacks of all threads to the log on SIGUSR1, the main thread's last.

    silent: also write the output of this process to the log.
    """
    faulthandler.register(signal.SIGUSR1, writer.fileno(), all_threads=True)
    if silent:
        for descriptor in (1, 2):
            os.dup2(writer.fileno(), descriptor)
