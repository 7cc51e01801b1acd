"""The house itself: floors, lint, types, the mirror of conf/, the README, the wheel."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import warm
import yaml
from options import CONF, REPOSITORY

import fastloop
from fastloop import catalogue

BIN = Path(sys.executable).parent
PACKAGE = REPOSITORY / "fastloop"
MODULES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted((REPOSITORY / "experiments").glob("*.py"))
OPTIONS = sorted(path for path in CONF.glob("*/*.yaml"))


@pytest.mark.parametrize(
    "command",
    ["ruff format --check .", "ruff check .", "lint-imports", "basedpyright --pythonpath {python}"],
)
def test_tool(command):
    name, *arguments = command.format(python=sys.executable).split()
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
    assert fastloop.__all__
    assert names & set(fastloop.__all__) == set()


@pytest.mark.parametrize(
    "path", MODULES + SCRIPTS, ids=lambda path: str(path.relative_to(REPOSITORY))
)
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


def readme_blocks() -> list[str]:
    """The README's bash blocks."""
    return re.findall(r"```bash\n(.*?)```", readme(), re.S)


def readme_modules() -> dict[str, str]:
    """The README's Python blocks that name a file in their first line, by that name."""
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", readme(), re.S))


def readme_commands() -> list[str]:
    """Every line of these blocks."""
    return [line for block in readme_blocks() for line in block.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(readme_blocks())))
def test_the_readmes_commands(number, tmp_path):
    """Each block from its first line to its last in one fresh folder, as a reader would."""
    environment = os.environ | {
        "FASTLOOP_OUTPUTS": str(tmp_path / "outputs"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "VENV": str(BIN.parent),
    }
    for name, text in readme_modules().items():
        (tmp_path / name).write_text(text)
    for mark in (".installed", ".installed-dev"):
        (BIN.parent / mark).touch()
    for command in readme_blocks()[number].splitlines():
        if command in ("make test", "make check"):
            assert re.search(
                rf"^{command.split()[1]}:", (REPOSITORY / "Makefile").read_text(), re.M
            )
            continue  # it is what runs this test
        cwd = REPOSITORY if command.startswith("make") else tmp_path
        done = done_in(cwd, on_less_data(command), environment)
        assert done.returncode == 0, command + done.stdout + done.stderr


def done_in(
    cwd: Path, command: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """By a shell; where all it would do is start fastloop, without waiting for torch."""
    words = shlex.split(command)
    if words[:2] == ["python", "-m"] and not {"&&", "|", ">"} & {*words}:
        return warm.run(words[2], (*words[3:],), cwd, environment)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def on_less_data(command: str) -> str:
    """The same line, quicker; installing is looked at and not done."""
    if "trials=" in command and "fastloop.run" in command:
        command += " trials=1"
    if "dataset=mydataset" in command:
        command += " dataset.count=512 epochs=1"
    return command.replace(
        "pip install -e .", f"pip install --dry-run --no-deps --quiet -e {REPOSITORY}"
    )


def test_the_readmes_tables_are_what_conf_has():
    assert catalogue.with_tables(readme()) == readme(), "make readme writes them"


def test_the_readmes_links_exist():
    assert len(readme_commands()) >= 5
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", readme()):
        if not target.startswith("http"):
            assert (REPOSITORY / target).exists(), target


@pytest.mark.slow
def test_the_wheel_serves_from_any_folder(tmp_path):
    wheel = built(tmp_path)
    python, site = fresh_environment(tmp_path)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, site, wheel], check=True)
    command = [python, "-P", "-m", "fastloop.run", "trials=1", "epochs=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "raw" in done.stdout
    where = [python, "-P", "-c", "import fastloop; print(fastloop.__file__)"]
    said = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert str(site) in said


def built(folder: Path) -> Path:
    """The wheel of a copy of what git tracks, or would."""
    source = folder / "source"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    assert list((folder / "dist").glob("*.tar.gz"))
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def fresh_environment(folder: Path) -> tuple[Path, Path]:
    """(python, its site-packages): the dependencies come from this environment, no fastloop."""
    venv.create(folder / "fresh", system_site_packages=False, with_pip=False, symlinks=True)
    site = next((folder / "fresh").glob("lib/python*/site-packages"))
    theirs = next(BIN.parent.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(str(theirs))
    return folder / "fresh" / "bin" / "python", site
