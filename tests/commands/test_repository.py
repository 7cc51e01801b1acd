"""The repository: sizes, conf/ against the modules, the wheel. `make lint` has the other checks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from options import CONF, REPOSITORY

import fastloop

BIN = Path(sys.executable).parent
PACKAGE = REPOSITORY / "fastloop"
MODULES = sorted(PACKAGE.rglob("*.py"))
C_SOURCES = sorted((PACKAGE / "fastloader" / "native").rglob("*.[ch]"))
SCRIPTS = sorted((REPOSITORY / "experiments").rglob("*.py"))
OPTIONS = sorted(path for path in CONF.glob("*/*.yaml"))


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_option_yaml_names_the_module_of_its_path(path):
    node = yaml.safe_load(path.read_text())
    node = node.get(path.stem, node)
    if "_target_" in node:
        module, _, name = node["_target_"].rpartition(".")
        assert module == f"fastloop.options.{path.parent.name}.{path.stem}"
        source = PACKAGE / "options" / path.parent.name / f"{path.stem}.py"
        assert re.search(rf"^class {name}\b", source.read_text(), re.M)
    else:
        assert set(node) == {"defaults"}


def test_every_option_module_has_a_yaml_file():
    modules = {
        f"{path.parent.name}/{path.stem}"
        for path in PACKAGE.glob("options/*/*.py")
        if not path.stem.startswith("_") and path.stem != "user"
    }
    assert modules == {f"{path.parent.name}/{path.stem}" for path in OPTIONS if path.stem != "all"}


def test_public_names_differ_from_module_names():
    names = {path.stem for path in MODULES if path.parent == PACKAGE}
    assert fastloop.__all__
    assert names & set(fastloop.__all__) == set()


def test_files_and_functions_are_small():
    texts = {path.relative_to(REPOSITORY): path.read_text() for path in MODULES + SCRIPTS}
    assert [str(path) for path, text in texts.items() if text.count("\n") > 500] == []
    assert [path.name for path in C_SOURCES if path.read_text().count("\n") > 250] == []
    functions = [
        (str(path), node.name, num_code_lines(node, text))
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 50
    ]
    assert [each for each in functions if each[-1] > 50] == []


def test_table_of_extras_lists_what_each_installs():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {
        name: [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]
        for name, requirements in project["optional-dependencies"].items()
        if name != "dev"
    }
    page = (REPOSITORY / "docs" / "choosing.md").read_text().partition("## Optional libraries")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", page, re.M)
    assert {name: libraries.split(", ") for name, libraries, _ in rows} == extras
    for group, option in re.findall(r"`(loader|decoder|placement|execution)=(\w+)`", page):
        assert (REPOSITORY / "conf" / group / f"{option}.yaml").is_file()


def num_code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> int:
    """Lines of a function without its docstring and its comments."""
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    code = [line for line in lines if not line.lstrip().startswith("#")]
    return len(code) - len((ast.get_docstring(node) or "").splitlines())


@pytest.mark.heavy
@pytest.mark.slow
def test_installed_wheel_runs_in_any_folder(tmp_path, wheel):
    check_resources(wheel)
    python, site = fresh_environment(tmp_path)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, site, wheel], check=True)
    settings = ("trials=1", "epochs=1", "min_window_s=0", "tracker=none")
    command = [python, "-P", "-m", "fastloop.run", *settings]
    # PYTHONPATH may name this repository, which would stand in the wheel's place.
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    captured = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    process = subprocess.run(command, **captured, check=False)
    assert process.returncode == 0, process.stderr
    assert "raw" in process.stdout
    locate = [python, "-P", "-c", "import fastloop; print(fastloop.__file__)"]
    location = subprocess.run(locate, **captured, check=True).stdout
    assert str(site) in location


def check_resources(wheel: Path) -> None:
    """Assert that the wheel has the files of options and experiments, and no reports."""
    names = zipfile.ZipFile(wheel).namelist()
    resources = "fastloop/resources"
    for path in (*OPTIONS, *(REPOSITORY / "experiments").rglob("*.yaml")):
        assert f"{resources}/{path.relative_to(REPOSITORY)}" in names
    assert f"{resources}/experiments/peers/loader/gather.c" in names
    assert f"{resources}/experiments/seed_training/run.py" not in names
    assert [name for name in names if name.endswith((".html", ".csv", ".md"))] == []


def fresh_environment(folder: Path) -> tuple[Path, Path]:
    """(python, site-packages) with this environment's dependencies, but without fastloop."""
    venv.create(folder / "fresh", system_site_packages=False, with_pip=False, symlinks=True)
    site = next((folder / "fresh").glob("lib/python*/site-packages"))
    # Not by this interpreter's folder, which may itself name another one in a .pth file.
    dependencies = Path(yaml.__file__).parent.parent
    (site / "dependencies.pth").write_text(str(dependencies))
    return folder / "fresh" / "bin" / "python", site


@pytest.mark.parametrize(("target", "size"), [("run", "3.3 GB"), ("test", "4 GB")])
def test_make_says_what_it_downloads_before_pip_shows_its_progress(tmp_path, target, size):
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'new'}"]
    # as typed in a shell: below another make it would begin with the folder that it enters
    environment = {name: each for name, each in os.environ.items() if not name.startswith("MAKE")}
    environment.pop("MFLAGS", None)
    process = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    first, *rest = process.stdout.splitlines()
    assert f"pip downloads up to {size} now" in first
    (install,) = [line for line in rest if " -m pip install " in line]
    assert "quiet" not in install
    assert " -q" not in install


INSTALLS = """
import sys, sysconfig, time
from pathlib import Path
site = Path(sysconfig.get_path("purelib"))
removed = site / "~emoved-1.0.dist-info"
removed.mkdir()
(removed / "INSTALLER").write_text("pip")
for name in ("half_there", "complete"):
    (site / f"{name}.py").write_text("VALUE = 1")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"{name}.py,,\\n")
if bad := eval(sys.argv[1]):
    odd = site / "odd-1.0.dist-info"
    odd.mkdir()
    (odd / "RECORD").write_bytes(bad)
    (odd / "INSTALLER").write_text("pip")
    time.sleep(1)
(info / "INSTALLER").write_text("pip")
while not [*site.glob("__pycache__/complete.*.pyc")]:
    time.sleep(0.05)
sys.exit(bool([*site.glob("__pycache__/half_there.*")]) or 3)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    "bad_list", ["b''", "b'caf\\xe9.py,,'", "b'a' * 200_000"], ids=["none", "not UTF-8", "not CSV"]
)
def test_packages_are_compiled_while_pip_installs_others(tmp_path, bad_list):
    venv.create(tmp_path / "new", with_pip=False, symlinks=True)
    command = [tmp_path / "new" / "bin" / "python", REPOSITORY / "compile_installed.py"]
    assert subprocess.run([*command, "-c", INSTALLS, bad_list], check=False).returncode == 3
