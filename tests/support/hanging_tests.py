"""Hooks of pytest for a test that hangs, whose process ends with the stacks of its threads, see
faulthandler_timeout in pyproject.toml."""

from __future__ import annotations

import faulthandler
import sys

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem, sched):
    """Let no other process repeat the test that has ended one, as pytest-xdist does where tests
    have groups: it would hang there too."""
    # Only schedulers of groups have such a queue; the others repeat no test.
    for scope, tests in [*getattr(sched, "workqueue", {}).items()]:
        if crashitem in tests:
            tests[crashitem] = True
        if all(tests.values()):  # a process waits for ever for the end of a group without tests
            del sched.workqueue[scope]


def pytest_unconfigure(config):
    """End a process that does not end after its last test, as during a test."""
    if seconds := float(config.getini("faulthandler_timeout") or 0):
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
