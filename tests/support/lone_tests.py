"""Hooks of pytest for tests marked alone, which run while no other test runs.

They judge a program by the time that it waits for the machine's cores and files, in which another
test would be seen.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Name a folder to each worker of pytest-xdist that they all share."""
    node.workerinput["turns"] = os.environ["TMPDIR"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    # Only pytest-xdist runs tests side by side. A pytest that a test starts is none of its workers,
    # and must not wait for the test that waits for it.
    folder = getattr(item.config, "workerinput", {}).get("turns")
    if folder is None:
        return (yield)
    with _turn(Path(folder), is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(folder: Path, *, is_alone: bool) -> Iterator[None]:
    """Hold the lock of running tests: by itself, or together with other tests."""
    with (folder / "gate.lock").open("w") as gate, (folder / "running.lock").open("w") as running:
        # A test that waits to be alone holds the gate, so that no further test begins meanwhile.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Closing the file is not enough if a process that the test has forked still has it.
            fcntl.flock(running, fcntl.LOCK_UN)
