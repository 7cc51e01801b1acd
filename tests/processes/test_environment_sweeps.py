"""Sweeps of loaders with pins that exclude each other, each in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from commands import QUICK, results, run_fastloop
from options import ALL_LIBRARIES, REPOSITORY, compose_job
from tiny_wheels import write_wheel

from fastloop.processes.environments import environment_for

LOADER = """
from torch.utils.data import DataLoader


def make_loader(dataset, sampler, batch_size, wanted):
    import pins_demo

    if pins_demo.VERSION != wanted:
        raise RuntimeError(f"pins_demo is {pins_demo.VERSION}")
    return DataLoader(dataset, batch_size, sampler=sampler)
"""
OPTION = """\
# a loader with a pin
_target_: pinned.make_loader
wanted: "{version}"
requirements: ["pins_demo=={version}"]   # what it imports
"""
OF_FILES = ("test_loaders", "test_stores", "test_formats")
CONTRACTS = {
    "loader=tf_data": OF_FILES,
    "loader=dali": ("test_loaders",),
    "loader=ffcv": OF_FILES,
    "loader=mosaic_streaming": OF_FILES,
    "placement=jax": ("test_placements",),
}
"""Option that needs an environment of its own -> modules with the tests of its contracts."""
BESIDE = {"loader": "np_memmap", "placement": "recursive"}
"""Group -> option of the main environment beside which the other one is measured."""

pytestmark = [pytest.mark.heavy, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder: a loader and two options of it with pins that exclude each other, and one
    with a pin that no package satisfies."""
    folder = tmp_path_factory.mktemp("pins")
    (folder / "pinned.py").write_text(LOADER)
    (folder / "conf" / "loader").mkdir(parents=True)
    for name, version in [("one", "1.0"), ("two", "2.0"), ("absent", "9.0")]:
        text = OPTION.format(version=version)
        (folder / "conf" / "loader" / f"{name}.yaml").write_text(text)
    for version in ("1.0", "2.0"):
        write_wheel(folder / "wheels", version)
    return folder


def run(folder: Path, *arguments: str, command: str = "", find_links: str = "wheels"):
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / find_links)}
    return run_fastloop("-cd", "conf", *arguments, cwd=folder, command=command, **index)


def environments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("outputs/environments/*"))


@pytest.fixture(scope="module")
def sweep(folder):
    """The results of one sweep that builds what it needs."""
    settings = ("build_environment=true", "min_window_s=0", "-m", "loader=one,two,absent")
    process = run(folder, *QUICK, *settings)
    assert process.returncode == 0, process.stdout + process.stderr
    return {result.loader: result for result in results(folder)}


def test_both_versions_are_measured_in_one_sweep(sweep):
    versions = {}
    for name in ("one", "two"):
        assert sweep[name].status == "FINISHED"
        assert len(sweep[name].trials) == 1
        assert sweep[name].shadow is not None
        versions[name] = sweep[name].environment["versions"].get("pins-demo")
    assert versions == {"one": "1.0", "two": "2.0"}
    # They are ranked together only if their data is the same.
    assert len({sweep[name].content for name in versions}) == 1
    assert sweep["one"].key != sweep["two"].key


def test_requirements_are_parameters_of_the_run(sweep):
    assert sweep["one"].params["loader.requirements"] == ["pins_demo==1.0"]


def test_an_environment_that_can_not_be_built_is_a_row_with_its_reason(sweep, folder):
    assert sweep["absent"].status == "FAILED"
    assert sweep["absent"].status_reason.startswith("unsupported: no environment: ")
    assert "pins_demo==9.0" in sweep["absent"].status_reason
    assert len(environments(folder)) == 2


def test_an_environment_is_used_again_without_being_asked_for(sweep, folder):
    before = len(results(folder))
    process = run(folder, *QUICK, "loader=one", find_links="nowhere")
    assert process.returncode == 0, process.stdout + process.stderr
    assert results(folder)[before].status == "FINISHED"


@pytest.mark.nightly
def test_ranks_run_in_the_environment(sweep, folder):
    before = len(results(folder))
    launcher = ("launcher=torchrun", "launcher.nproc_per_node=2")
    process = run(folder, *QUICK, "loader=two", *launcher, find_links="nowhere")
    assert process.returncode == 0, process.stdout + process.stderr
    assert results(folder)[before].status == "FINISHED"


def test_a_missing_environment_is_named_with_the_command_that_creates_it(folder):
    process = run(folder, *QUICK, "loader=absent")
    assert process.returncode == 1
    assert "pins_demo==9.0" in process.stderr
    assert "fastloop env" in process.stderr


def test_this_process_can_not_hold_the_requirements(sweep, folder):
    process = run(folder, *QUICK, "loader=one", "isolation=inline")
    assert process.returncode == 1
    assert "isolation=inline" in process.stderr


def test_the_command_lists_creates_and_removes(sweep, folder):
    process = run(folder, "-m", "loader=one,absent,raw", command="env")
    assert process.returncode == 1
    assert "exists" in process.stdout
    assert "pins_demo==9.0" in process.stderr
    listed = run_fastloop(cwd=folder, command="env")
    assert "pins_demo==1.0" in listed.stdout
    assert "pins_demo==2.0" in listed.stdout
    names = environments(folder)
    cleaned = run_fastloop("environments", "yes=true", cwd=folder, command="clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert len(names) == 2
    assert environments(folder) == []
    process = run(folder, "loader=two", command="env")
    assert process.returncode == 0, process.stderr
    (name,) = environments(folder)
    description = json.loads(
        (folder / "outputs" / "environments" / name / "environment.json").read_text()
    )
    assert description["packages"] == {"pins_demo": "2.0"}


@pytest.mark.parametrize("value", ["text", "[1]", "{a: b}", "['']", "['\\'a']"])
def test_requirements_are_a_list_of_texts(folder, value):
    process = run(folder, *QUICK, "loader=one", f"loader.requirements={value}")
    assert process.returncode == 1
    assert "loader.requirements=" in process.stderr
    assert process.stderr.count("\n") == 1


@pytest.fixture(scope="module", params=CONTRACTS)
def own_environment(request, tmp_path_factory) -> tuple[str, Path]:
    """An option with a library that this environment lacks, and a folder with an environment that
    has it: pip downloads the library, and FFCV is compiled."""
    choice = request.param
    if environment_for(compose_job(choice).requirements) is None:
        pytest.skip("the other tests have tested it: this environment has its library")
    folder = tmp_path_factory.mktemp("own")
    process = run_fastloop(choice, cwd=folder, command="env")
    if process.returncode and os.environ.get(ALL_LIBRARIES) != "1":
        pytest.skip(process.stderr)  # there is no network, for example
    assert process.returncode == 0, process.stderr
    return choice, folder


@pytest.mark.nightly
def test_option_in_an_environment_is_measured_beside_one_of_the_main_environment(own_environment):
    choice, folder = own_environment
    group, _, name = choice.partition("=")
    process = run_fastloop(*QUICK, "-m", f"{group}={BESIDE[group]},{name}", cwd=folder)
    assert process.returncode == 0, process.stdout + process.stderr
    here, own = results(folder)
    assert (here.status, own.status) == ("FINISHED", "FINISHED"), own.status_reason
    assert here.content == own.content
    assert here.environment["versions"] != own.environment["versions"]


@pytest.mark.nightly
def test_contracts_of_an_option_hold_in_its_environment(own_environment):
    choice, folder = own_environment
    (python,) = folder.glob("outputs/environments/*/bin/python")
    tests = [f"tests/contracts/{each}.py" for each in CONTRACTS[choice]]
    name = choice.partition("=")[2]
    command = [python, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *tests, "-k", name]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "not installed" not in done.stdout, done.stdout[-5000:]
