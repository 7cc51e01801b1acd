"""The doctor command: whether this machine is ready to measure, and what it has."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from commands import run_fastloop
from filelock import FileLock

from fastloop.cli import doctor
from fastloop.core.machine_load import Load

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_the_first_sentence_is_the_answer_and_nothing_is_written(tmp_path):
    process = run_fastloop("seconds=0.3", cwd=tmp_path, command="doctor")
    answer = " ".join(process.stdout.split("\n\n")[0].split())
    if process.returncode:  # other tests run at the same time
        assert answer.startswith("This machine is not ready to measure: other processes used ")
    else:
        assert answer.startswith("This machine is ready to measure. ")
    assert process.returncode in (0, 1), process.stderr
    names = [line.split("  ")[0] for line in process.stdout.split("\n\n")[1].splitlines()]
    assert {"cores", "memory", "accelerators", "FastLoader", "outputs"} <= {*names}
    assert "optional libraries: " in process.stdout
    assert process.stdout.count("not installed: ") == process.stdout.count(" (for ")
    assert [*tmp_path.iterdir()] == []


def test_a_source_folder_that_is_not_installed_is_told(monkeypatch):
    """As on a machine where only PYTHONPATH names the folder."""
    monkeypatch.setattr(doctor, "requires", lambda name: requires(f"{name}-is-not-installed"))
    (line,) = doctor._libraries()
    assert "fastloop itself is not installed" in line


def test_empty_compiler_variable_means_the_default(monkeypatch):
    expected = dict(doctor._software())["C compiler"]
    for value in ("", " "):
        monkeypatch.setenv("CC", value)
        assert dict(doctor._software())["C compiler"] == expected


def test_environments_of_options_are_listed(tmp_path):
    folder = tmp_path / "outputs" / "environments" / "0123456789abcdef"
    folder.mkdir(parents=True)
    described = {"path": [], "packages": {"webdataset": "0.2.100"}, "fastloop": None}
    described |= {"requirements": ["webdataset==0.2.100"]}
    (folder / "environment.json").write_text(json.dumps(described))
    process = run_fastloop("seconds=0.3", cwd=tmp_path, command="doctor")
    (row,) = re.findall(r"^environments +(.*)$", process.stdout, re.M)
    assert row.startswith("1, ")
    assert "webdataset==0.2.100" in row


def test_another_fastloop_that_measures_is_told(tmp_path):
    with FileLock(tmp_path / "lock"):
        lock = {"FASTLOOP_LOCK": str(tmp_path / "lock")}
        process = run_fastloop("seconds=0.3", cwd=tmp_path, command="doctor", **lock)
    reason = "This machine is not ready to measure: another fastloop measures on this machine"
    assert process.stdout.startswith(reason)
    assert process.returncode == 1


@pytest.mark.parametrize("given", ["seconds=soon", "seconds=0.1", "seconds=nan", "second=2"])
def test_wrong_settings_are_one_line(given, tmp_path):
    process = run_fastloop(given, cwd=tmp_path, command="doctor")
    assert (process.returncode, process.stdout) == (2, "")
    assert len(process.stderr.splitlines()) == 1
    assert "allowed: " in process.stderr


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        (
            {"other_cores": 0.02},
            "This machine is ready to measure. The machine was quiet: other processes used at "
            "most 0.02 of 2 cores during the 2 s.",
        ),
        (
            {"other_cores": 1.5, "busiest": {"chromium": 1.4}},
            "This machine is not ready to measure: other processes used 1.50 of 2 cores "
            "(chromium).",
        ),
        (
            {"other_cores": 0.0, "pressure": {"memory": 0.4}},
            "This machine is not ready to measure: other processes used 0.00 of 2 cores, and "
            "processes waited for memory 40 % of the time.",
        ),
    ],
)
def test_known_loads_have_known_answers(changes, answer):
    load = Load(**{"seconds": 2.0, "cores": 2} | changes)
    assert doctor._answer(load, doctor._busy(load), 2.0) == answer


def test_a_system_that_does_not_tell_is_ready():
    load = Load(seconds=0.0, cores=2, other_cores=None)
    assert doctor._busy(load) == ""
    assert doctor._answer(load, "", 2.0).startswith("This machine is ready to measure. It is unkn")


def test_every_extra_of_an_option_is_looked_for():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    found = {option for options in doctor._optional_libraries().values() for option in options}
    assert found == extras.keys() - doctor.NO_OPTIONS
    assert doctor._optional_libraries()["h5py"] == ["hdf5"]
