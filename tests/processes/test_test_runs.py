"""Runs of the tests themselves: what hangs ends, signals arrive, and two runs share the tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from options import REPOSITORY, SUPPORT

HANGING = """
import threading
def test_hang():
    threading.Event().wait()
def test_other():
    pass
"""
SEVERAL = """
import pytest
@pytest.mark.parametrize("name", ["a@b", "c"])
def test_passing(name):
    pass
@pytest.mark.xdist_group("shared")
def test_in_a_group():
    pass
def test_skipped():
    pytest.skip("a library is missing")
@pytest.fixture
def ends_badly():
    yield
    raise ValueError
def test_that_ends_badly(ends_badly):
    pass
"""
OF_IMAGES = """
def test_with_jpeg():
    pass
"""


def run_pytest(*arguments: str, cwd: Path, **settings) -> subprocess.CompletedProcess:
    """Run pytest with the repository's settings, but without its tests."""
    configuration = ["-c", str(REPOSITORY / "pyproject.toml"), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *configuration, "-n", "1", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **settings)


@pytest.mark.heavy
def test_test_that_hangs_ends_with_stacks_and_the_others_run(tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGING)
    process = run_pytest(
        "-p", "hanging_tests", "-o", "faulthandler_timeout=1", str(tmp_path), cwd=tmp_path
    )
    assert 'test_hanging.py", line 4 in test_hang' in process.stderr
    assert "crashed while running 'test_hanging.py::test_hang'" in process.stdout
    assert "1 failed, 1 passed" in process.stdout
    assert process.returncode == 1


@pytest.mark.heavy
@pytest.mark.nightly
def test_second_run_leaves_out_what_passed_but_not_tests_of_images(tmp_path):
    (tmp_path / "conftest.py").write_text((SUPPORT.parent / "conftest.py").read_text())
    (tmp_path / "test_several.py").write_text(SEVERAL)
    (tmp_path / "test_images.py").write_text(OF_IMAGES)
    passed = tmp_path / "names of passed tests"
    options = "-p", "earlier_runs", "-n", "2", "-v"
    first = run_pytest(*options, f"--record-passed={passed}", str(tmp_path), cwd=tmp_path)
    assert "5 passed, 1 skipped, 1 error" in first.stdout
    # As in .ci/run: the processes that pytest-xdist starts read the variable by themselves.
    environment = os.environ | {"PYTEST_ADDOPTS": f"--passed-before='{passed}'"}
    second = run_pytest(*options, str(tmp_path), cwd=tmp_path, env=environment)
    for name in ("test_skipped", "test_that_ends_badly", "test_with_jpeg"):
        assert f"::{name}" in second.stdout
    for name in ("test_passing", "test_in_a_group"):
        assert f"::{name}" not in second.stdout
    assert "2 passed, 1 skipped" in second.stdout


FLAKY = """
from pathlib import Path
import pytest
def test_that_passes_alone():
    seen = Path(__file__).with_suffix(".seen")
    has_run = seen.exists()
    seen.touch()
    assert has_run
@pytest.mark.xdist_group("shared")
def test_that_fails_again():
    assert False
def test_passing():
    pass
"""


@pytest.mark.heavy
def test_third_run_repeats_only_what_failed(tmp_path):
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    failed = tmp_path / "names of failed tests"
    options = "-p", "earlier_runs", "-n", "2", "-v", str(tmp_path)
    first = run_pytest(f"--record-failed={failed}", *options, cwd=tmp_path)
    assert "2 failed, 1 passed" in first.stdout
    assert len(failed.read_text().splitlines()) == 2
    second = run_pytest(f"--failed-before={failed}", *options, cwd=tmp_path)
    assert "1 failed, 1 passed" in second.stdout
    assert "test_that_fails_again" in second.stdout
    assert "test_passing" not in second.stdout


@pytest.mark.heavy
def test_pytest_takes_the_options_that_ci_hands_it(request, tmp_path):
    (tmp_path / "passed").write_text("")
    script = (REPOSITORY / ".ci" / "run").read_text()
    halves = re.findall(r'^run_tests \S+ "(.*)"', script, re.MULTILINE)
    (left_out,) = re.findall(r'LEFT_OUT="(.*)"', script)
    common, alone = re.findall(r'PYTEST_ADDOPTS="(.*?)"', script)
    assert len(halves) == 2
    for options in [*(common.replace("$2", half) for half in halves), alone]:
        addopts = options.replace("$SCRATCH", str(tmp_path)).replace("$LEFT_OUT", left_out)
        # Each of the first two runs has written its own, which are none.
        (tmp_path / "failed").write_text(f"{request.node.nodeid.partition('@')[0]}\n")
        # With this file alone: the options are read before anything is collected.
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", __file__],
            cwd=REPOSITORY,
            env=os.environ | {"PYTEST_ADDOPTS": addopts},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr


@pytest.mark.heavy
def test_programs_that_tests_start_get_sigint_where_it_is_ignored(tmp_path):
    (tmp_path / "conftest.py").write_text((SUPPORT.parent / "conftest.py").read_text())
    (tmp_path / "test_child.py").write_text(
        "import subprocess, sys\n"
        "def test_child():\n"
        "    program = 'import signal; print(signal.getsignal(signal.SIGINT).__name__)'\n"
        "    output = subprocess.check_output([sys.executable, '-c', program], text=True)\n"
        "    assert output == 'default_int_handler\\n'\n"
    )
    process = run_pytest(
        *("-n", "0", str(tmp_path)),
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert "1 passed" in process.stdout, process.stdout
