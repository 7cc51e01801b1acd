"""Hooks of pytest for the server of commands that all workers of pytest-xdist share.

It imports while they collect tests. Each would take eight seconds for a server of its own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import fork_server
import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Start the server with the first worker, and name its address to each."""
    # A single worker starts its own, if its tests need any.
    if (node.config.getoption("numprocesses") or 1) == 1:
        return
    address = Path(os.environ["TMPDIR"]) / "commands.socket"
    # Without an address, as in a folder with a long path, each worker starts a server of its own.
    with suppress(OSError):
        if not address.exists():
            fork_server.start_server(address=str(address))
        node.workerinput["commands"] = str(address)


def pytest_configure(config):
    if address := getattr(config, "workerinput", {}).get("commands"):
        with suppress(OSError):  # the server has ended: this worker starts its own
            fork_server.connect(address)
