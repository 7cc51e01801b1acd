"""Environments that fastloop creates for options: their packages, reuse, and ends of a build."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml
from commands import fill_disk, run_fastloop
from options import CONF, MYDATASET, REPOSITORY, compose_job, require_library
from packaging.requirements import Requirement
from tiny_wheels import write_wheel

from fastloop.core.atomic_files import hold_lock
from fastloop.core.fingerprints import fingerprint
from fastloop.core.machine import PACKAGES
from fastloop.core.optional_libraries import version_of
from fastloop.core.types import FailureKind, JobFailed, Unsupported
from fastloop.options.launcher.single import SingleLauncher
from fastloop.processes import environments
from fastloop.processes.environments import (
    Environment,
    build_environment,
    environment_for,
    environments_folder,
    list_environments,
    read_environment,
    spawn_from,
)
from fastloop.processes.pip_reason import find_reason

OPTIONS_WITH_LIBRARIES = [
    path
    for group in ("loader", "store", "placement")
    for path in sorted((CONF / group).glob("*.yaml"))
    if "requirements:" in path.read_text()
]


@pytest.fixture
def index(tmp_path, monkeypatch, outputs) -> Path:
    """A folder of wheels that pip knows alone."""
    folder = tmp_path / "wheels"
    write_wheel(folder, "1.0")
    write_wheel(folder, "2.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def left_over() -> list[str]:
    folder = environments_folder()
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def version_here(module: str) -> tuple[str, str, str]:
    return import_module(module).VERSION, torch.__file__, sys.prefix


def in_environment(folder: Path, module: str) -> tuple[str, str, str]:
    context = multiprocessing.get_context("spawn")
    with spawn_from(folder), ProcessPoolExecutor(1, context) as pool:
        return pool.submit(version_here, module).result()


@pytest.mark.heavy
@pytest.mark.nightly
def test_two_environments_hold_versions_that_exclude_each_other(index):
    before = [*sys.path], multiprocessing.spawn.get_executable()
    for number in ("1.0", "2.0"):
        built = build_environment(Environment(requirements=(f"pins_demo=={number}",)))
        assert built.packages == {"pins_demo": number}
        version, torch_file, prefix = in_environment(built.folder, "pins_demo")
        assert (version, torch_file, prefix) == (number, torch.__file__, str(built.folder))
    assert len(list_environments()[0]) == 2
    assert (sys.path, multiprocessing.spawn.get_executable()) == before


@pytest.mark.heavy
def test_an_environment_is_built_once_with_scripts_that_its_interpreter_runs(index, monkeypatch):
    environment = Environment(requirements=("pins_demo==1.0",))
    assert not environment.is_built
    built = build_environment(environment)
    assert environment.is_built
    assert built == read_environment(environment.folder)
    files = [path for path in (environment.folder / "bin").iterdir() if not path.is_symlink()]
    assert files
    assert not any(b".partial" in path.read_bytes() for path in files)
    # Nothing could be installed any more.
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert build_environment(environment) == built


@pytest.mark.heavy
@pytest.mark.nightly
def test_a_requirement_precedes_the_version_of_the_main_environment(index):
    # Nothing of fastloop or pytest imports it.
    write_wheel(index, "0.1", name="webdataset")
    built = build_environment(Environment(requirements=("webdataset==0.1",)))
    assert in_environment(built.folder, "webdataset")[0] == "0.1"


@pytest.mark.heavy
def test_libraries_of_the_main_environment_are_not_installed_again(index):
    write_wheel(index, "1.0", name="needs_torch", needs="torch>=2")
    built = build_environment(Environment(requirements=("needs_torch",)))
    assert built.packages == {"needs_torch": "1.0"}


@pytest.mark.heavy
def test_an_environment_has_stores_of_its_own_if_a_library_writes_them(index):
    require_library("webdataset")
    built = build_environment(Environment(requirements=("pins_demo==1.0",)))
    for loader, is_shared in (("np_memmap", True), ("webdataset", False)):
        request = compose_job(f"loader={loader}", *MYDATASET).data_request
        here, context = request.prepare().folder, multiprocessing.get_context("spawn")
        with spawn_from(built.folder), ProcessPoolExecutor(1, context) as pool:
            there = pool.submit(request.prepare).result().folder
        assert (here == there) == is_shared


@pytest.mark.heavy
def test_a_requirement_may_have_options_of_pip(index):
    write_wheel(index, "3.0", needs="no_such_package")
    with pytest.raises(Unsupported, match="no_such_package"):
        build_environment(Environment(requirements=("pins_demo==3.0",)))
    built = build_environment(Environment(requirements=("--no-deps pins_demo==3.0",)))
    assert built.packages == {"pins_demo": "3.0"}


@pytest.mark.heavy
def test_pip_installs_to_the_environment_whatever_its_variables_say(index, monkeypatch, tmp_path):
    """Each of these variables alone would keep the package out of the environment."""
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_DRY_RUN", "1")
    built = build_environment(Environment(requirements=("pins_demo==1.0",)))
    assert built.packages == {"pins_demo": "1.0"}


def test_compiled_scripts_do_not_keep_scripts_from_being_moved(tmp_path):
    beside, folder = tmp_path / ".key.partial", tmp_path / "key"
    (beside / "bin" / "__pycache__").mkdir(parents=True)
    (beside / "bin" / "tool.py").write_text(f"#!{beside}/bin/python\n")
    environments._move_scripts(beside, folder)
    assert (beside / "bin" / "tool.py").read_text() == f"#!{folder}/bin/python\n"


@pytest.mark.heavy
def test_a_failed_build_leaves_nothing_and_says_why_in_one_line(index):
    with pytest.raises(Unsupported, match=r"no environment: .*pins_demo==9") as caught:
        build_environment(Environment(requirements=("pins_demo==9",)))
    assert "\n" not in str(caught.value)
    assert "the newest that exist: 1.0, 2.0: PIP_NO_INDEX=1 keeps pip from" in str(caught.value)
    assert not left_over()


@pytest.mark.heavy
def test_an_index_that_can_not_be_reached_is_the_reason(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # no server listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(Unsupported, match="absent_package: pip can't reach its index"):
        build_environment(Environment(requirements=("absent_package",)))
    assert not left_over()


def test_a_connection_that_pip_has_restored_is_not_the_reason():
    warning = "WARNING: Retrying after connection broken by 'ReadTimeoutError': /simple/a/\n"
    conflict = "Cannot install a==1 and b==2 because of conflicting dependencies."
    assert find_reason(f"{warning}ERROR: {conflict}\n") == conflict
    absent = "No matching distribution found for a"
    assert find_reason(f"{warning}ERROR: {absent}\n") == f"{absent}: pip can't reach its index"


ABSENT = "ERROR: Could not find a version that satisfies the requirement a=={} (from versions: {})"


@pytest.mark.parametrize(
    ("number", "versions", "told"),
    [
        ("9", "1, 2, 3, 4", "a==9; the newest that exist: 2, 3, 4"),
        ("9", "none", "a==9"),
        ("0.5", "1, 2", "a==0.5: it requires Python <3.9,>=3.6; the newest that exist: 1, 2"),
    ],
)
def test_versions_that_pip_has_left_out_are_not_its_reason(monkeypatch, number, versions, told):
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    yanked = "ERROR: Ignored the following yanked versions: 0.1"
    other = "ERROR: Ignored the following versions that require a different python version: "
    other += "0.4 Requires-Python <3.5; 0.5 Requires-Python <3.9,>=3.6; 0.6 Requires-Python <3.9"
    output = "\n".join([yanked, other, ABSENT.format(number, versions), "ERROR: No matching ..."])
    reason = "Could not find a version that satisfies the requirement "
    assert find_reason(output) == f"{reason}{told}"


@pytest.mark.heavy
def test_requirements_that_exclude_each_other_fail(index):
    with pytest.raises(Unsupported, match=r"pins_demo==1\.0 and pins_demo==2\.0"):
        build_environment(Environment(requirements=("pins_demo==1.0", "pins_demo==2.0")))
    assert not left_over()


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_build_leaves_nothing_to_the_next_one(index, monkeypatch, tmp_path, number):
    # A server that never answers keeps pip waiting.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        program = (
            "from fastloop.processes.environments import Environment, build_environment\n"
            "build_environment(Environment(requirements=('absent_package',)))"
        )
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
        connection, _ = server.accept()
        process.send_signal(number)
        process.wait()
        # pip has ended with it: its end of the connection is closed.
        while connection.recv(1 << 16):
            pass
        connection.close()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_INDEX_URL")
    assert not [*(tmp_path / "temporary").iterdir()]
    if number == signal.SIGINT:
        assert not left_over()
        return  # as for a first build, of which there are other tests
    built = build_environment(Environment(requirements=("pins_demo==1.0",)))
    assert left_over() == [built.folder.name]


BACKEND = """
import os, socket

def get_requires_for_build_wheel(settings=None):
    connection = socket.create_connection(("127.0.0.1", {port}))
    connection.recv(1)
"""


@pytest.mark.heavy
def test_an_interrupted_build_ends_the_programs_that_pip_has_started(index, tmp_path):
    import socket

    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "waits"\nbackend-path = ["."]\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "waits.py").write_text(BACKEND.format(port=server.getsockname()[1]))
        program = (
            "from fastloop.processes.environments import Environment, build_environment\n"
            f"build_environment(Environment(requirements=({str(tmp_path)!r} + '/.',)))"
        )
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
        connection, _ = server.accept()
        process.send_signal(signal.SIGINT)
        process.wait()
        # The kernel closes its end of the connection.
        assert connection.recv(1) == b""
        connection.close()
    assert not left_over()


@pytest.mark.heavy
def test_a_second_process_waits_for_the_same_environment_and_finds_it(index, tmp_path):
    (tmp_path / "mine.py").write_text("from torch.utils.data import DataLoader as Loader\n")
    words = ("loader._target_=mine.Loader", "+loader.requirements=['pins_demo==1.0']")
    command = [sys.executable, "-m", "fastloop", "env", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with hold_lock(environments_folder()):
        both = [subprocess.Popen(command, cwd=tmp_path, **streams) for _ in range(2)]
        for each in both:
            line = each.stderr.readline()
            assert line == "another fastloop creates an environment: waiting for its end\n"
    ends = [each.communicate() for each in both]
    assert [each.returncode for each in both] == [0, 0], ends
    folder = environments_folder() / left_over()[0]
    words = {stdout.strip().rpartition("Loader: ")[2] for stdout, _ in ends}
    assert words == {f"created: {folder}", f"exists: {folder}"}


def test_clean_removes_no_environment_while_one_is_created(outputs, tmp_path):
    unfinished = environments_folder() / ".0123.partial"
    unfinished.mkdir(parents=True)
    arguments = ("environments", "yes=true")
    with hold_lock(environments_folder()):
        process = run_fastloop(*arguments, cwd=tmp_path, command="clean")
        assert process.returncode == 1
        assert process.stderr.startswith("clean environments: another fastloop creates an env")
        assert process.stderr.count("\n") == 1
        assert unfinished.exists()
    assert run_fastloop(*arguments, cwd=tmp_path, command="clean").returncode == 0
    assert not unfinished.exists()


@pytest.mark.heavy
def test_folders_may_have_any_name(index, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(tmp_path / 'my "own" outputs'))
    path = write_wheel(tmp_path / "it's mine", "1.0")
    environment = Environment(requirements=(str(path),))
    assert build_environment(environment).packages == {"pins_demo": "1.0"}
    assert environment.is_built
    assert in_environment(environment.folder, "pins_demo")[0] == "1.0"


def test_text_that_no_file_can_hold_is_refused(outputs):
    with pytest.raises(Unsupported, match=r"no environment: caf\\udce9: allowed: text in UTF-8"):
        build_environment(Environment(requirements=("caf\udce9",)))
    assert not left_over()


@pytest.mark.parametrize("option", ["-r", "--requirement", "-c"])
def test_a_file_of_requirements_of_another_content_is_another_environment(
    tmp_path, monkeypatch, option
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "requirements.txt"
    file.write_text("a==1")
    environment = Environment(requirements=(f"{option} {file.name}",))
    key = environment.key
    file.write_text("a==2")
    assert environment.key != key


@pytest.mark.heavy
def test_a_wheel_of_another_content_is_another_environment(index):
    path = write_wheel(index / "own", "1.0", name="pins_demo")
    first = Environment(requirements=(str(path),))
    key = first.key
    write_wheel(index / "own", "1.0", needs="numpy")
    assert first.key != key
    assert build_environment(first).packages == {"pins_demo": "1.0"}


@pytest.mark.heavy
def test_an_environment_may_have_a_fastloop_of_its_own(index, tmp_path):
    wheel = write_wheel(tmp_path / "own", "9.9", name="fastloop")
    built = build_environment(Environment(fastloop=wheel))
    assert built.packages == {"fastloop": "9.9"}
    command = [
        str(built.folder / "bin/python"),
        "-I",
        "-c",
        "import fastloop; print(fastloop.VERSION)",
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "9.9\n"


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(small_disk, monkeypatch):
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(small_disk / "outputs"))
    (small_disk / "outputs").mkdir()
    fill_disk(small_disk)
    with pytest.raises(Unsupported, match=r"no environment: .*No space left on device") as caught:
        build_environment(Environment(requirements=("absent_package",)))
    assert "\n" not in str(caught.value)
    assert not left_over()


def test_a_path_that_does_not_exist_is_named(outputs):
    with pytest.raises(Unsupported, match="no such file"):
        build_environment(Environment(requirements=("absent-1.0-py3-none-any.whl",)))


def test_no_process_starts_from_an_environment_that_was_removed(outputs):
    launcher = SingleLauncher(isolation="forkserver", environment=outputs / "environments" / "gone")
    with pytest.raises(JobFailed, match="unsupported: no environment in") as caught:
        launcher.call(int)
    assert caught.value.failure.kind == FailureKind.UNSUPPORTED


def test_no_environment_is_needed_for_what_the_main_one_has(outputs):
    assert environment_for([]) is None
    assert environment_for(["numpy", "torch>=2", "absent; python_version < '3'"]) is None
    assert environment_for(["torch[optree]"]) is None


def test_an_extra_is_needed_if_the_main_environment_lacks_its_libraries(tmp_path, monkeypatch):
    info = tmp_path / "half_there-1.0.dist-info"
    info.mkdir()
    head = "Metadata-Version: 2.1\nName: half-there\nVersion: 1.0\n"
    lines = ["numpy", "absent-package; extra == 'cloud'", "numpy>=1; extra == 'rows'"]
    requires = "".join(f"Requires-Dist: {line}\n" for line in lines)
    (info / "METADATA").write_text(head + requires)
    monkeypatch.syspath_prepend(tmp_path)
    assert environment_for(["half-there", "half-there[rows]>=1"]) is None
    assert environment_for(["half-there[rows,cloud]"]) is not None


@pytest.mark.parametrize(
    "requirement", ["numpy<1", "absent_package", "--no-deps absent_package", "a/path"]
)
def test_an_environment_is_needed_for_what_the_main_one_lacks(outputs, requirement):
    expected = Environment(requirements=("numpy", requirement))
    assert environment_for(["numpy", requirement]) == expected


def test_the_name_does_not_depend_on_the_order_of_requirements():
    keys = {Environment(requirements=each).key for each in [("a", "b"), ("b", "a")]}
    assert len(keys) == 1
    assert Environment(requirements=("a",)).key not in keys


def test_the_name_does_not_depend_on_the_links_to_the_main_environment(tmp_path, monkeypatch):
    folder, link, nested = (tmp_path / name for name in ("real", "link", "nested"))
    folder.mkdir()
    link.symlink_to(folder)
    nested.symlink_to(link)
    keys = set[str]()
    for prefix in (folder, link, nested, tmp_path):
        monkeypatch.setattr(sys, "prefix", str(prefix))
        keys.add(Environment(requirements=("a",)).key)
    assert len(keys) == 2
    # One that is reached without a link has the name that it had before links were followed.
    versions = [(name, version_of(name)) for name in ("torch", "numpy")]
    assert fingerprint(1, sys.version, str(tmp_path), ["a"], [], versions) in keys


def test_an_environment_that_was_moved_is_built_again(outputs):
    environment = Environment(requirements=("a",))
    own = environment.folder / "lib" / "site-packages"
    own.mkdir(parents=True)
    moved_from = outputs.parent / "before" / own.relative_to(outputs)
    for place, is_built in ((own, True), (moved_from, False)):
        values = {"requirements": ["a"], "fastloop": None, "path": [str(place)], "packages": {}}
        (environment.folder / environments.DESCRIPTION).write_text(json.dumps(values))
        assert environment.is_built == is_built


@pytest.mark.parametrize(
    "text", ["", '{"requirements": ["a"], "fastl', "[]", '{"requirements": "a"}', "\udcff"]
)
def test_a_damaged_description_is_told_in_one_line_and_is_no_environment(outputs, text):
    environment = Environment(requirements=("a",))
    environment.folder.mkdir(parents=True)
    file = environment.folder / environments.DESCRIPTION
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert not environment.is_built
    found, (line,) = list_environments()
    assert found == []
    assert line.startswith(f"{file}: damaged, ")
    assert "\n" not in line
    with pytest.raises(JobFailed, match="damaged") as caught, spawn_from(environment.folder):
        pass
    assert caught.value.failure.kind == FailureKind.UNSUPPORTED


def test_environments_lie_in_the_outputs_folder(outputs):
    environment = Environment(requirements=("a",))
    assert environment.folder.parent == outputs / "environments"
    assert environments.list_environments() == ([], [])


@pytest.mark.parametrize(
    "path", OPTIONS_WITH_LIBRARIES, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_requirements_of_an_option_are_those_of_an_extra(path):
    requirements = yaml.safe_load(path.read_text())["requirements"]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [{*extra} for extra in project["optional-dependencies"].values()]
    plain = {each for each in requirements if not each.startswith("-")}
    # An extra would exclude the NumPy of the main environment.
    assert (plain in extras) != (path.stem == "mosaic_streaming")


@pytest.mark.parametrize(
    "path", OPTIONS_WITH_LIBRARIES, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_results_record_the_version_of_an_options_library(path):
    words = [each.split()[-1] for each in yaml.safe_load(path.read_text())["requirements"]]
    assert {Requirement(word).name for word in words} & {*PACKAGES}
