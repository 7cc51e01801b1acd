"""Options of pytest that tell a run what an earlier one has found. A run records which tests have
passed or failed; a later one, for which more libraries are installed, leaves out what has passed,
and another runs only what has failed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

OF_IMAGES = ("_jpeg", "ResizedCrop", "resized_crop", "CenterCrop", "center_crop", "LongestSide")
"""Words in the files of tests that use the native decoder of JPEG images where it is built, and
other code where it is not: they are other tests then."""
DECODE_NOTHING = ("test_obvious_lines.py", "test_settings_of_some_jobs.py", "test_suite_file.py")
"""Files of tests with such words in lines that are composed, or refused, and never decoded."""
_passed: dict[str, bool] = {}
"""Whether each test has passed, with its set-up and its end."""
_failed: dict[str, None] = {}
"""The tests of which a part has failed, in the order in which they did."""


def pytest_addoption(parser):
    group = parser.getgroup("earlier runs")
    group.addoption("--record-passed", metavar="FILE", help="write the names of passed tests there")
    group.addoption("--record-failed", metavar="FILE", help="write the names of failed tests there")
    group.addoption("--passed-before", metavar="FILE", help="leave out the tests named there")
    group.addoption("--failed-before", metavar="FILE", help="run only the tests named there")


def pytest_runtest_logreport(report):
    """Record a part of a test; with pytest-xdist the process that starts the others hears of it."""
    _passed[report.nodeid] = _passed.get(report.nodeid, True) and report.outcome == "passed"
    if report.outcome == "failed":
        _failed[report.nodeid] = None


def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        return
    passed = [name for name, has_passed in _passed.items() if has_passed]
    for option, names in {"record_passed": passed, "record_failed": _failed}.items():
        if path := session.config.getoption(option):
            Path(path).write_text("".join(f"{name}\n" for name in names))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave tests out by what an earlier run has found, when pytest-xdist has added the groups to
    the names."""
    yield
    again = [*items]
    if path := config.getoption("passed_before"):
        passed = _names(path)
        again = [item for item in again if item.nodeid not in passed or _is_of_images(item.path)]
    if path := config.getoption("failed_before"):
        failed = _names(path)
        again = [item for item in again if item.nodeid in failed]
    config.hook.pytest_deselected(items=[*{*items} - {*again}])
    items[:] = again


def _names(path: str) -> set[str]:
    return set(Path(path).read_text().splitlines())


@cache
def _is_of_images(path: Path) -> bool:
    return path.name not in DECODE_NOTHING and any(word in path.read_text() for word in OF_IMAGES)
