"""The process of a version: the package that it would import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fastloop
from fastloop.cli.serve_version import explain_no_job, find_foreign_package
from fastloop.sweep import early_check
from fastloop.sweep.version_process import Version, start_version


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Path:
    """An environment with version 1.0 of a package of three modules and of the project's tests."""
    names = ["tiny_package", "tiny_space/part", "tests"]
    modules = [*(f"{name}/__init__.py" for name in names), "tiny_module.py"]
    for module in modules:
        (tmp_path / "env" / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "env" / module).touch()
    info = tmp_path / "env" / "tiny_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny_package\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{module},,\n" for module in modules))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.syspath_prepend(tmp_path / "env")
    yield tmp_path / "env"
    # Looking for a module in a namespace has imported the namespace.
    sys.modules.pop("tiny_space", None)


@pytest.mark.parametrize(
    "module", ["tiny_package/__init__.py", "tiny_space/part/__init__.py", "tiny_module.py"]
)
def test_modules_without_a_number_that_hide_the_version_are_told(
    environment, tmp_path, monkeypatch, module
):
    hiding = tmp_path / "working folder" / module
    hiding.parent.mkdir(parents=True)
    hiding.touch()
    assert find_foreign_package("tiny_package", "1.0") == ""
    sys.modules.pop("tiny_space", None)
    monkeypatch.syspath_prepend(tmp_path / "working folder")
    assert f"is imported from {hiding} and" in find_foreign_package("tiny_package", "1.0")
    assert find_foreign_package("tiny_package", "") == ""


def test_tests_of_the_users_project_hide_no_version(environment, tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_foreign_package("tiny_package", "1.0") == ""


def test_base_that_lacks_the_early_check_gives_no_early_reason(monkeypatch):
    monkeypatch.delattr(early_check, "reason_against")
    assert explain_no_job([]) == ""


THEIRS = """
import subprocess, sys
from pathlib import Path

class Rows:
    def __init__(self):
        script = Path(__file__).with_name("tools") / "first.py"
        subprocess.run([sys.executable, script], check=True)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return float(index), index
"""
"""A user's module, with a Dataset that runs a script which imports one beside it."""


@pytest.mark.heavy
def test_trial_imports_no_fastloop_of_the_working_folder(tmp_path, monkeypatch):
    code = tmp_path / "code"
    (code / "tools").mkdir(parents=True)
    (code / "theirs.py").write_text(THEIRS)
    (code / "tools" / "first.py").write_text("import beside\n")
    (code / "tools" / "beside.py").touch()
    (tmp_path / "fastloop").mkdir()
    (tmp_path / "fastloop" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    version = Version(label="base", path=(str(Path(fastloop.__file__).parents[1]), str(code)))
    words = ["loader=raw", "dataset=theirs.Rows", "benchmark=traversal", "tracker=none", "trials=1"]
    with start_version(version, words, tmp_path / "out", is_base=True) as process:
        assert process.receive() == {"ready": ["raw theirs.Rows"]}
        process.run_trial(0)
        process.end()
        (result,) = process.results().values()
    assert (result.status, result.status_reason) == ("FINISHED", "")
