"""The house itself: floors, lint, types, the mirror of conf/, the README, the wheel."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml
from options import CONF, REPOSITORY

BIN = Path(sys.executable).parent
PACKAGE = REPOSITORY / "fastloop"
MODULES = sorted(PACKAGE.rglob("*.py"))
OPTIONS = sorted(path for path in CONF.glob("*/*.yaml"))


@pytest.mark.parametrize(
    "command", ["ruff format --check .", "ruff check .", "lint-imports", "basedpyright"]
)
def test_tool(command):
    name, *arguments = command.split()
    done = subprocess.run(
        [BIN / name, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_conf_mirrors_the_modules(path):
    node = yaml.safe_load(path.read_text())
    node = node.get(path.stem, node)
    if "_target_" in node:
        module, _, name = node["_target_"].rpartition(".")
        assert module == f"fastloop.{path.parent.name}s.{path.stem}"
        assert re.search(
            rf"^class {name}\b",
            (PACKAGE / f"{path.parent.name}s" / f"{path.stem}.py").read_text(),
            re.M,
        )
    else:
        assert set(node) == {"defaults"}


def test_every_option_module_has_its_yaml():
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}

    modules = {
        f"{path.parent.name}/{path.stem}"
        for path in MODULES
        if path.parent.name[:-1] in folders and path.stem != "__init__"
    }
    assert modules == {f"{path.parent.name}s/{path.stem}" for path in OPTIONS if path.stem != "all"}


def test_no_public_function_shares_its_name_with_a_module_of_the_package():
    names = {path.stem for path in MODULES if path.parent == PACKAGE}
    exported = {
        node.name
        for node in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert names & exported == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (
                node.end_lineno
                - node.lineno
                + 1
                - len((ast.get_docstring(node) or "").splitlines())
            )
            assert length <= 45, node.name


def readme() -> str:
    return (REPOSITORY / "README.md").read_text()


def readme_commands() -> list[str]:
    """Every line of the README's bash blocks; a comment or a continuation belongs to its
    command."""
    blocks = re.findall(r"```bash\n(.*?)```", readme(), re.S)
    return [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in readme_commands() if one.split()[0] != "git"])
def test_readme_command(command, tmp_path):
    if command.startswith(("make test", "make check")):
        assert re.search(rf"^{command.split()[1]}:", (REPOSITORY / "Makefile").read_text(), re.M)
        return  # it is what runs this test
    environment = os.environ | {
        "FASTLOOP_OUTPUTS": str(tmp_path / "outputs"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "VENV": str(BIN.parent),
    }
    cwd = REPOSITORY if command.startswith("make") else tmp_path
    prelude = (
        f"touch {BIN.parent}/.installed {BIN.parent}/.installed-dev; "
        if command.startswith("make")
        else ""
    )
    if "dataset=mydataset" in command:  # the same line on less data
        command += " dataset.count=512 epochs=1"
    command = command.replace(
        "pip install -e .", f"pip install --dry-run --no-deps --quiet -e {REPOSITORY}"
    )
    done = subprocess.run(
        ["bash", "-c", prelude + command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readmes_links_exist():
    assert len(readme_commands()) >= 5
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", readme()):
        if not target.startswith("http"):
            assert (REPOSITORY / target).exists(), target


@pytest.mark.slow
def test_the_wheel_serves_from_any_folder(tmp_path):
    source = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in tracked:
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(source)],
        check=True,
        capture_output=True,
    )
    assert list((tmp_path / "dist").glob("*.tar.gz"))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    fresh = tmp_path / "fresh"
    venv.create(fresh, system_site_packages=False, with_pip=False, symlinks=True)
    site = next(fresh.glob("lib/python*/site-packages"))
    # The dependencies come from this environment, fastloop itself from the wheel alone.
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
    )
    theirs = next(BIN.parent.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(str(theirs))
    command = [
        fresh / "bin" / "python",
        "-P",
        "-m",
        "fastloop.run",
        "trials=1",
        "epochs=1",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [fresh / "bin" / "python", "-P", "-c", "import fastloop; print(fastloop.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(fresh) in where
    assert "raw" in done.stdout
