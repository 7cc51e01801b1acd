"""Python programs that a script starts are observed, too, and get their arguments unchanged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from commands import run_fastloop

from fastloop.explain.attach.follow_children import BOOTSTRAP, rewrite_command

PROBE = [BOOTSTRAP, "records"]


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """This interpreter as that of an environment, which has two names for it."""
    python = make_environment(tmp_path / "this")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PATH", os.path.dirname(python))
    return python


def make_environment(folder):
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    return str(folder / "bin" / "python")


@pytest.mark.parametrize(
    ("arguments", "options", "script"),
    [
        ("w.py -c 3", "", "w.py -c 3"),
        ("-u w.py", "-u", "w.py"),
        ("-uE w.py", "-uE", "w.py"),
        ("-W error -Xdev w.py", "-W error -Xdev", "w.py"),
        ("-uW error w.py", "-uW error", "w.py"),
        ("-uWerror w.py", "-uWerror", "w.py"),
        ("--check-hash-based-pycs always w.py", "--check-hash-based-pycs always", "w.py"),
        ("-m work 3", "", "-m work 3"),
        ("-mwork 3", "", "-m work 3"),
        ("-um work 3", "-u", "-m work 3"),
        ("-umwork", "-u", "-m work"),
        ("-W error -m work", "-W error", "-m work"),
    ],
)
def test_script_is_run_by_the_bootstrap_with_its_options(interpreter, arguments, options, script):
    command = [interpreter, *arguments.split()]
    expected = [interpreter, *options.split(), *PROBE, *script.split()]
    assert rewrite_command(command, "records") == expected
    assert rewrite_command(expected, "records") == expected


@pytest.mark.parametrize(
    "arguments",
    ["", "-", "-m", "-W", "-c w.py", "-uc w.py", "-i w.py", "-x w.py", "-V w.py", "--help", "work"],
)
def test_command_that_runs_no_script_stays_as_it_is(interpreter, arguments):
    command = [interpreter, *arguments.split()]
    assert rewrite_command(command, "records") == command


def test_this_python_is_known_by_each_of_its_names_and_no_other_is(interpreter, tmp_path):
    other, script = make_environment(tmp_path / "other"), Path("w.py")
    for name in ("python", "python3", f"{interpreter}3", interpreter.encode()):
        command = rewrite_command([name, script], "records")
        assert command == [os.fsdecode(name), *PROBE, "w.py"]
    for name in (other, "nowhere", "sh"):
        assert rewrite_command([name, script], "records") == [name, script]
    for path in (os.path.dirname(other), ""):
        assert rewrite_command(["python", script], "records", {"PATH": path}) == ["python", script]
    # As in os.environb.
    names = {b"PATH": os.fsencode(os.path.dirname(interpreter))}
    assert rewrite_command(["python", script], "records", names) == ["python", *PROBE, "w.py"]


WORKER = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

for batch in DataLoader(TensorDataset(torch.zeros(8)), 2):
    pass
print(sys.argv[1:])
"""
STARTER = """
import subprocess
subprocess.run(["python", "-mwork", "a.py"], check=True)
"""


@pytest.mark.heavy
def test_module_that_a_script_starts_by_name_is_observed(tmp_path):
    (tmp_path / "work.py").write_text(WORKER)
    (tmp_path / "start.py").write_text(STARTER)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    process = run_fastloop("start.py", cwd=tmp_path, command="attach", PATH=path)
    assert (process.returncode, process.stdout) == (0, "['a.py']\n"), process.stderr
    (found,) = tmp_path.glob("outputs/attach/*/attach.json")
    assert [loop["facts"]["place"] for loop in json.loads(found.read_text())["loops"]] == [
        "work.py:6"
    ]
