"""A plugin of pytest that replaces DataLoader by FastLoader in the modules of tests."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fastloop import FastLoader

NAMES = "DataLoader", "StatefulDataLoader"
"""Names in a test module that are replaced by FastLoader."""
RECORDS, LOADER = "PEER_SUITES_RECORDS", "PEER_SUITES_LOADER"
"""Environment variables: the path of a file to which one line per test is written, and "fastloader"
or "dataloader"."""
TEST_TIMEOUT_S = 120
T = TypeVar("T")


class PeerLoader(FastLoader[T]):
    """FastLoader with the one parameter that only torchdata's loader has: how often it saves its
    state. FastLoader's state is exact after every batch, so the parameter has no effect."""

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **kwargs: Any) -> None:
        self.snapshot_every_n_steps = snapshot_every_n_steps
        super().__init__(*args, **kwargs)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replace the loaders in the collected modules."""
    if os.environ[LOADER] != "fastloader":
        return
    for module in {id(module): module for module in map(_module_of, items)}.values():
        for name in NAMES:
            if hasattr(module, name):
                setattr(module, name, PeerLoader)


def _module_of(item: pytest.Item) -> Any:
    return getattr(item, "module", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """End a test that hangs."""

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError(f"{item.name} took longer than {TEST_TIMEOUT_S} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(TEST_TIMEOUT_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a test: of its call, or of its set-up or tear-down if these fail or
    skip."""
    if report.when != "call" and report.passed:
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr or "")
    record = {"test": report.nodeid, "outcome": report.outcome, "message": message[:2000]}
    with Path(os.environ[RECORDS]).open("a") as file:
        file.write(json.dumps(record) + "\n")
