"""Hooks of pytest for the server of commands that all workers of pytest-xdist share.

It imports while they collect tests. Each would take eight seconds for a server of its own.
"""

from __future__ import annotations

import os
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
    if not address.exists():
        fork_server.start_server(address=str(address))
    node.workerinput["commands"] = str(address)


def pytest_configure(config):
    if address := getattr(config, "workerinput", {}).get("commands"):
        fork_server.connect(address)
