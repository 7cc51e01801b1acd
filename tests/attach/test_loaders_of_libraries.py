"""A library that makes its own DataLoader of the script's, as Lightning and Accelerate do: the
change is made at the script's line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import run_fastloop

from fastloop.explain.attach import library_files
from fastloop.explain.attach.library_files import add_own_files, package_of
from fastloop.explain.attach.loader_places import place_of_pass
from fastloop.explain.attach.script_runner import AS_IS, ScriptRunner
from fastloop.explain.change import Change

REMADE = """
from torch.utils.data import DataLoader

def prepare(loader):
    return DataLoader(loader.dataset, loader.batch_size, num_workers=loader.num_workers)
"""
WRAPPED = """
from torch.utils.data import DataLoader

original = DataLoader.__init__

def wrapper(obj, *args, **named):
    original(obj, *args, **named)

DataLoader.__init__ = wrapper

def prepare(loader):
    return loader
"""
REMADE_BY_CLASS = """
def prepare(loader):
    return type(loader)(loader.dataset, loader.batch_size, num_workers=loader.num_workers)
"""
SCRIPT = """
import sys
sys.path.insert(0, "site-packages")
import torch
import trainer
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    class Mine(DataLoader):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)

    data = TensorDataset(torch.arange(32.0))
    loader = trainer.prepare(DataLoader(data, 4))
    print(type(loader).__name__, loader.num_workers)
    for _ in range(2):
        for batch in loader:
            pass
"""
LINES = SCRIPT.splitlines()
MADE_LINE = 1 + next(number for number, line in enumerate(LINES) if "prepare(" in line)
LOOP_LINE = 1 + next(number for number, line in enumerate(LINES) if "in loader:" in line)
LIBRARIES = pytest.mark.parametrize("library", [REMADE, WRAPPED], ids=["remade", "wrapped"])


def write_script(folder, library):
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "trainer.py").write_text(library)
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.heavy
@LIBRARIES
def test_loader_is_made_at_the_line_of_the_script(tmp_path, library):
    path = write_script(tmp_path, library)
    process = run_fastloop(str(path), cwd=tmp_path, command="attach")
    assert (process.returncode, process.stdout) == (0, "DataLoader 0\n"), process.stderr
    (written,) = tmp_path.glob("outputs/attach/*/attach.json")
    found = json.loads(written.read_text())
    (loop,) = found["loops"]
    assert loop["facts"]["made_at"] == f"{path}:{MADE_LINE}"
    assert (loop["passes"], loop["batches"]) == (2, 16)
    assert "never" not in process.stderr


@pytest.mark.heavy
def test_derived_loader_that_is_made_again_is_made_at_the_line_of_the_script(tmp_path):
    path = write_script(tmp_path, REMADE_BY_CLASS)
    path.write_text(path.read_text().replace("prepare(DataLoader(", "prepare(Mine("))
    process = run_fastloop(str(path), cwd=tmp_path, command="attach")
    assert (process.returncode, process.stdout) == (0, "Mine 0\n"), process.stderr
    (written,) = tmp_path.glob("outputs/attach/*/attach.json")
    (loop,) = json.loads(written.read_text())["loops"]
    assert loop["facts"]["made_at"] == f"{path}:{MADE_LINE}"


@pytest.mark.heavy
def test_loader_that_a_library_makes_of_the_planned_one_is_raced(tmp_path):
    text = write_script(tmp_path, REMADE).read_text()
    text = text.replace("torch.arange(32.0))", "torch.arange(3200.0))")
    (tmp_path / "train.py").write_text(
        text.replace("            pass", "            batch[0].sum()")
    )
    words = ("budget=45s", "--script", "train.py")
    process = run_fastloop(*words, cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"train.py:{MADE_LINE}: the DataLoader of the loop" in process.stdout


def begin_run(folder, library, expected):
    """A runner of a script that fails if its loader is another one than expected."""
    path = write_script(folder, library)
    text = path.read_text().replace("    for _", f"    assert {expected}\n    for _")
    path.write_text(text)
    facts = {"place": f"train.py:{LOOP_LINE + 1}", "made_at": f"{path}:{MADE_LINE}"}
    found = SimpleNamespace(facts=facts, ranks=None, batches=16, passes=2, seconds=1.0)
    return ScriptRunner([str(path)], cast("Any", found), 12, folder)


@pytest.mark.heavy
@LIBRARIES
def test_change_of_the_scripts_call_reaches_the_loop(tmp_path, library, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change = Change(settings={"num_workers": 1})
    runner = begin_run(tmp_path, library, "loader.num_workers == int(len(sys.argv) > 1)")
    assert runner.seconds(AS_IS, 120.0) > 0
    runner.arguments.append("changed")
    assert runner.seconds(change, 120.0) > 0


@pytest.mark.heavy
def test_wrapped_call_makes_the_fastloader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = begin_run(tmp_path, WRAPPED, "type(loader).__name__ == 'FastLoader'")
    assert runner.seconds(Change(is_fastloader=True), 120.0) > 0


FIT = """
from torch.utils.data import DataLoader

def fit(data):
    loader = DataLoader(data, 4)
    for _ in range(2):
        for batch in loader:
            pass
"""
CALL = """
import torch
import trainer
from torch.utils.data import TensorDataset

trainer.fit(TensorDataset(torch.arange(32.0)))
"""


FILES_OF_TRAINER = "trainer/__init__.py", "trainer/train.py", "other.py"


def install(folder):
    """The library as `pip install --target` installs it, and a script beside it."""
    (folder / "trainer").mkdir(parents=True)
    (folder / "trainer" / "__init__.py").write_text(FIT)
    info = folder / "trainer-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("trainer/__init__.py,,\ntrainer-1.0.dist-info/RECORD,,\n")
    (folder / "mine.py").write_text("")


@pytest.fixture
def own_files(monkeypatch):
    """A set of the user's own files that ends with the test."""
    monkeypatch.setattr(library_files, "OWN", set())
    library_files.keep_own([])
    yield
    library_files.keep_own([])


def test_files_that_pip_has_put_into_a_folder_are_a_library(tmp_path, monkeypatch):
    install(tmp_path)
    package = f"{tmp_path}/trainer/__init__.py"
    # The command does not know the path of the script, which looks at its own path alone.
    assert package_of(package, is_of_script=False) == "trainer"
    assert package_of(package) == ""
    package_of.cache_clear()
    monkeypatch.setattr(sys, "path", [None, str(tmp_path)])
    assert package_of(package) == "trainer"
    assert package_of(f"{tmp_path}/mine.py") == ""
    # A module of one's own in a folder that an installed package also has.
    assert package_of(f"{tmp_path}/trainer/mine.py") == ""


@pytest.mark.heavy
@pytest.mark.parametrize("change", ["sys.path.pop(0)", "os.chdir('run')"])
def test_library_stays_one_if_the_script_changes_its_path(tmp_path, change):
    install(tmp_path / "libs")
    (tmp_path / "run").mkdir()
    folder = repr(str(tmp_path / "libs")) if "pop" in change else "'libs'"
    program = (
        "import os, sys\n"
        f"sys.path.insert(0, {folder})\n"
        "import trainer\n"
        f"{change}\n"
        "from fastloop.explain.attach.library_files import package_of\n"
        "print(package_of(trainer.__file__))\n"
    )
    command = [sys.executable, "-c", program]
    root = str(Path(library_files.__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout == "trainer\n"


def test_folder_without_a_list_of_files_makes_no_library(tmp_path, monkeypatch):
    install(tmp_path)
    (tmp_path / "trainer-1.0.dist-info" / "RECORD").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    assert package_of(f"{tmp_path}/trainer/__init__.py") == ""


def write_wheel(folder):
    """A wheel of a distribution whose package has another name, as of PyYAML."""
    path = folder / "pytrainer-1.0-py3-none-any.whl"
    info = "pytrainer-1.0.dist-info"
    files = {
        "trainer/__init__.py": FIT,
        "single.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pytrainer\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


@pytest.mark.slow
def test_pip_lists_the_files_that_it_puts_into_a_folder(tmp_path, monkeypatch):
    libs, options = tmp_path / "libs", ["--quiet", "--no-index", "--no-deps", "--target"]
    command = [sys.executable, "-m", "pip", "install", *options, libs, write_wheel(tmp_path)]
    subprocess.run(command, check=True)
    monkeypatch.syspath_prepend(libs)
    assert package_of(f"{libs}/trainer/__init__.py") == "trainer"
    assert package_of(f"{libs}/single.py") == "single"


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize(
    "command", [["trainer/train.py"], ["-m", "trainer.train"], ["torchrun", "-m", "trainer"]]
)
def test_distribution_of_the_script_is_no_library(tmp_path, monkeypatch, command):
    """`pip install --target app .` of one's own project lists its files as those of any other."""
    install(tmp_path)
    (tmp_path / "trainer" / "train.py").write_text("")
    record = tmp_path / "trainer-1.0.dist-info" / "RECORD"
    record.write_text(f"{record.read_text()}trainer/train.py,,\nother.py,,\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    add_own_files([*command, "--out=a.py"])
    assert {package_of(f"{tmp_path}/{each}") for each in FILES_OF_TRAINER} == {""}


@pytest.mark.heavy
def test_loop_of_a_library_in_a_folder_of_pythonpath_is_the_scripts_call(tmp_path):
    install(tmp_path / "libs")
    (tmp_path / "train.py").write_text(CALL)
    libs = str(tmp_path / "libs")
    process = run_fastloop("train.py", cwd=tmp_path, command="attach", PYTHONPATH=libs)
    assert process.returncode == 0, process.stderr
    (written,) = tmp_path.glob("outputs/attach/*/attach.json")
    (loop,) = json.loads(written.read_text())["loops"]
    assert loop["facts"]["place"] == "train.py:6"
    assert loop["facts"]["made_at"] == f"{libs}/trainer/__init__.py:5"


@pytest.mark.heavy
def test_loop_of_a_library_that_runs_as_a_module_has_the_librarys_line(tmp_path):
    """No line of the script is running: `python -m` is frozen code of Python's own."""
    package = tmp_path / "site-packages" / "trainer"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(f"{FIT}\nimport torch\nfit([torch.zeros(1)] * 32)\n")
    path = str(tmp_path / "site-packages")
    process = run_fastloop("-m", "trainer", cwd=tmp_path, command="attach", PYTHONPATH=path)
    assert process.returncode == 0, process.stderr
    (written,) = tmp_path.glob("outputs/attach/*/attach.json")
    (loop,) = json.loads(written.read_text())["loops"]
    assert loop["facts"]["place"] == "__main__.py:7"
    assert (loop["passes"], loop["batches"]) == (2, 16)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/envs/torch/lib/site-packages/lightning/loops.py", "loops.py:1"),
        ("/envs/x/lib/site-packages/torch/utils/data/dataloader.py", ""),
    ],
)
def test_place_in_a_thread_of_a_library_is_the_librarys_line(file, place):
    """Its environment may have any name. torch's own lines tell nothing of the loop."""
    found = []
    code = compile("found.append(place_of_pass())", file, "exec")
    names = {"found": found, "place_of_pass": place_of_pass}
    thread = threading.Thread(target=exec, args=(code, names))
    thread.start()
    thread.join()
    assert found == [place]
