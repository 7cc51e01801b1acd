"""Options of pytest that divide the tests between two runs: a run records which tests have passed,
and a later one, where more libraries are installed, leaves them out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

OF_IMAGES = ("_jpeg", "ResizedCrop", "resized_crop", "CenterCrop", "center_crop", "LongestSide")
"""Words in the files of tests that use the native decoder of JPEG images where it is built, and
other code where it is not: they are other tests then."""
_passed: dict[str, bool] = {}
"""Whether each test has passed, with its set-up and its end."""


def pytest_addoption(parser):
    group = parser.getgroup("tests in two runs")
    group.addoption("--record-passed", metavar="FILE", help="write the names of passed tests there")
    group.addoption("--passed-before", metavar="FILE", help="leave out the tests named there")


def pytest_runtest_logreport(report):
    """Record a part of a test; with pytest-xdist the process that starts the others hears of it."""
    _passed[report.nodeid] = _passed.get(report.nodeid, True) and report.outcome == "passed"


def pytest_sessionfinish(session):
    path = session.config.getoption("record_passed")
    if path and not hasattr(session.config, "workerinput"):
        names = (name for name, has_passed in _passed.items() if has_passed)
        Path(path).write_text("".join(f"{name}\n" for name in names))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what has passed before, when pytest-xdist has added the groups to the names."""
    yield
    path = config.getoption("passed_before")
    if path is None:
        return
    before = set(Path(path).read_text().splitlines())
    again = [item for item in items if item.nodeid not in before or _is_of_images(item.path)]
    config.hook.pytest_deselected(items=[*{*items} - {*again}])
    items[:] = again


@cache
def _is_of_images(path: Path) -> bool:
    return any(word in path.read_text() for word in OF_IMAGES)
