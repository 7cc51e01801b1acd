"""README.md and docs/: every command runs, every path and link exists, the site builds."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fork_server
import pytest
import yaml
from options import REPOSITORY

import fastloop
from fastloop.config import catalogue
from fastloop.config.help import options_page

BIN = Path(sys.executable).parent
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").glob("*.md"))]
TEXTS = [*PAGES, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
LANGUAGES = {"", "python", "bash", "sh", "{eval-rst}", "{include} ../README.md", "{toctree}"}
FENCE = re.compile(r"^([^\n]*)\n```([^\n`]*)\n(.*?)^```$", re.M | re.S)
NOT_EXECUTED = re.compile(r"<!-- not executed: (.+) -->")
TESTED_ELSEWHERE = {
    "make test": "runs this test",
    "pip install -e .": "this package is installed already",
}
READER_OPTIONS = [
    *(("dataset", "squares"), ("experiment", "best"), ("experiment", "tuned")),
    *(("dataset", "mine"), ("loader", "mine"), ("model", "train")),  # of dataset=mine.Squares
    ("loader", "old_shards"),
]
"""Options that the pages ask their readers to write, or that a command writes."""
FAST_SETTINGS = (
    "epochs=1",
    "trials=1",
    "tracker=none",
    "min_window_s=0",
    "isolation=inline",
    "report=false",  # the pages' own `fastloop report` writes one
)
"""Settings appended to commands that measure."""
EXPLAIN_SETTINGS = ("try=0", "trials=1", "batches=8", "min_window_s=0", "isolation=inline")
"""Settings of commands that explain a job, in place of the page's own."""


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line before it."""

    language: str
    text: str
    before: str


def blocks(page: Path) -> list[Block]:
    text = "\n" + page.read_text()
    return [Block(language, text, before) for before, language, text in FENCE.findall(text)]


def commands(page: Path) -> list[str]:
    """The lines of the page's bash blocks."""
    bash_blocks = (block for block in blocks(page) if block.language == "bash")
    return [line for block in bash_blocks for line in block.text.splitlines()]


def new_commands() -> dict[Path, list[str]]:
    """Commands by the first page that has them. The tutorial precedes README.md, which needs its
    files."""
    pages: dict[str, Path] = {}
    for page in sorted(PAGES, key=lambda page: page.stem != "tutorial"):
        for command in commands(page):
            pages.setdefault(command, page)
    return {page: [command for command in pages if pages[command] == page] for page in PAGES}


def modules() -> Iterator[tuple[str, str]]:
    """(file name, content) of each Python block whose first line is a comment with a file name."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python" and (name := re.match(r"# (\w+\.py)\n", block.text)):
                yield name[1], block.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A working folder with the files that the pages ask their readers to save."""
    folder = tmp_path_factory.mktemp("reader")
    for name, text in modules():
        (folder / name).write_text(with_few_photos(text))
    return folder


def with_few_photos(text: str) -> str:
    """A file or a command of the tutorial, with a fifth of its images, which are small."""
    text = text.replace("dataset.count=320", "dataset.count=64")
    text = text.replace("dataset.crop=[400,600]", "dataset.crop=[100,150]")
    return text.replace("photos-320-400x600", "photos-64-100x150")


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page, lines in new_commands().items() if lines], ids=lambda page: page.stem
)
def test_commands_of_a_page_succeed(page, folder):
    for command in new_commands()[page]:
        process = execute(with_few_photos(shorten(command)), folder)
        assert process.returncode == 0, command + process.stdout + process.stderr


def shorten(command: str) -> str:
    """The command with less data and fewer repetitions; "" if it is tested elsewhere."""
    if command in TESTED_ELSEWHERE:
        return ""
    if command.startswith("make "):  # test_browser.py runs the experiment
        return f"{expand_make_target(command)} --cfg job"
    if command.startswith("torchrun ") or "launcher=torchrun" in command:
        return re.sub(r"^torchrun \S+ -m", "python -m", command) + " --cfg job"
    if command.startswith("fastloop explain "):
        for setting in EXPLAIN_SETTINGS:
            name = setting.partition("=")[0]
            command = re.sub(f" {name}=[^ ]+", "", command) + f" {setting}"
        return command
    if "fastloop.run" not in command or "--cfg" in command or "--help" in command:
        is_large = command.startswith("fastloop prepare dataset=mydataset")
        return command.replace("trials=5", "trials=2") + is_large * " dataset.count=512"
    extra_settings = list(FAST_SETTINGS)
    if "benchmark=" not in command:
        extra_settings.append("benchmark=traversal")
    if "dataset=mydataset" in command:
        extra_settings.append("dataset.count=512")
    return " ".join([command.replace("glob(*)", "raw,preload"), *extra_settings])


def expand_make_target(command: str) -> str:
    """The command of fastloop that a target of the Makefile runs."""
    dry_run = subprocess.run(
        [*command.split(), "--dry-run"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    (line,) = (line for line in dry_run.stdout.splitlines() if "fastloop.run" in line)
    return re.sub(r"^\S+/python", "python", line)


def execute(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command by a shell, or in a fork of an interpreter if it only starts Python."""
    environment = os.environ | {
        "FASTLOOP_OUTPUTS": str(folder / "outputs"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    words = shlex.split(command)
    if words[:2] == ["python", "-m"]:
        return fork_server.run(words[2], (*words[3:],), folder, environment)
    if words[:1] == ["python"] and words[1].endswith(".py"):
        return fork_server.run(str(folder / words[1]), (*words[2:],), folder, environment)
    if words[:1] == ["fastloop"]:
        return fork_server.run("fastloop", (*words[1:],), folder, environment)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_shell_blocks_are_executed_or_give_a_reason():
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{page.name}: {block.text}"
            reason = NOT_EXECUTED.fullmatch(block.before)
            assert (block.language == "sh") == bool(reason), f"{page.name}: {block.text}"


def test_blocks_with_one_file_name_are_equal():
    files = list(modules())
    assert len(dict(files)) == len(set(files))


def test_readme_is_at_most_10_kb():
    assert len(README.read_bytes()) <= 10_000


def test_readme_begins_with_an_answer():
    """The first screen: the question, the installation, attach's output and picture; then the table
    of make run, and FastLoader with one figure and its condition."""
    text = README.read_text()
    place = 0
    for fact in (
        *("?** ", "pip install -e .\n", "fastloop attach train.py\n", "\nverdict: ", "pictures/"),
        *("make run\n", " rank  limit ", "## FastLoader\n", "as fast (95 %: ", "on two cores"),
    ):
        assert fact in text[place:], fact
        place = text.index(fact, place)
        assert fact != "pip install -e .\n" or text.count("\n", 0, place) <= 10


def test_user_pages_speak_of_no_notes_that_a_reader_does_not_have():
    """fastloop began from numbered notes, called seeds, which are not part of the repository."""
    pages = [*PAGES, *(REPOSITORY / "experiments").rglob("*.md")]
    texts = {page.relative_to(REPOSITORY): page.read_text() for page in pages}
    found = {name: re.findall(r"\b[Ss]eeds? 00\d", text) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "page", [*PAGES, REPOSITORY / "CONTRIBUTING.md"], ids=lambda page: page.stem
)
def test_conditions_of_a_page_do_not_say_where(page):
    """A condition that begins with "where", which is for places, has to be read twice. Code and
    printed output are not judged."""
    prose = FENCE.sub("", "\n" + page.read_text())
    pattern = r"[^\n]{0,30}(?:[.;:,(]\s+[Ww]here|\bwhose)\b[^\n]{0,30}|^Where\b[^\n]{0,30}"
    assert re.findall(pattern, prose, re.M) == []


def test_files_of_the_package_that_pages_name_exist():
    folders = [REPOSITORY / name for name in ("fastloop", "tests", "experiments", "docs")]
    paths = [*REPOSITORY.glob("*.py"), *(path for each in folders for path in each.rglob("*.*"))]
    names = {path.name for path in paths} | {name for name, _ in modules()} | {"tuned.py"}
    for page in [*PAGES, REPOSITORY / "CONTRIBUTING.md"]:
        named = re.findall(r"`(?:[\w<>/-]+/)*([\w-]+\.(?:py|c|h))`", page.read_text())
        assert set(named) <= names, page.name


def test_modules_of_explain_tune_and_fastloader_are_named_by_the_architecture():
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    folders = ("explain", "explain/attach", "tune", "fastloader", "fastloader/native")
    files = [path for folder in folders for path in (REPOSITORY / "fastloop" / folder).iterdir()]
    files = [path for path in files if path.suffix in (".py", ".c") and path.stem != "__init__"]
    assert [path.name for path in files if f"{path.name}`" not in page] == []


def fields_of_table(page: str, heading: str) -> set[str]:
    """Names in the first column of the first table below the heading, without what follows a dot
    or a bracket."""
    text = (REPOSITORY / "docs" / page).read_text().partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)
    assert table
    cells = [row.split("|")[1] for row in table[0].splitlines()[2:]]
    return {re.split(r"[.\[]", name)[0] for cell in cells for name in re.findall(r"`(.+?)`", cell)}


@pytest.mark.parametrize(
    ("page", "heading", "schema", "definition"),
    [
        ("commands.md", "class `fastloop.core.result.Result`", "core/result", ""),
        ("suite.md", "## The file", "suite/suite", ""),
        ("suite.md", "| `seals` | a digest of each raw field outside", "suite/suite", "Cell"),
        ("explaining.md", "## explain.json", "core/result", "Explanation"),
    ],
)
def test_fields_of_a_file_that_a_page_names_are_in_its_schema(page, heading, schema, definition):
    schema = json.loads((REPOSITORY / "fastloop" / f"{schema}.schema.json").read_text())
    properties = (schema["$defs"][definition] if definition else schema)["properties"]
    named = fields_of_table(page, heading)
    assert len(named) >= 8
    assert named <= {*properties, "schema"}


def test_pictures_of_the_tutorial_are_shown_and_small():
    """docs/redraw.py draws them."""
    page = (REPOSITORY / "docs" / "tutorial.md").read_text()
    sizes = {path.name: path.stat().st_size for path in REPOSITORY.glob("docs/pictures/*")}
    assert sorted(sizes) == sorted(re.findall(r"\]\(pictures/([^)]+)\)", page))
    assert len(sizes) >= 6
    assert max(sizes.values()) < 100_000


def test_options_page_is_up_to_date():
    page = REPOSITORY / "docs" / "options.md"
    assert page.read_text() == options_page(), "make docs writes it"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_and_paths_of_a_page_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:fastloop|conf|tests|experiments|docs)/[\w/.]*)`", text):
        assert path == "docs/_build/html" or (REPOSITORY / path).exists(), path
    for path in NOT_EXECUTED.findall(text):
        for file in re.findall(r"tests/[\w/.]+", path):
            assert (REPOSITORY / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_named_on_a_page_exist(page):
    groups = {group.name: catalogue.options_of(group.name) for group in catalogue.groups()}
    groups["experiment"] = list(catalogue.experiment_files())
    choices = re.findall(r"(?<![\w/._])(\w+)=(\w+)(?!\()\b", page.read_text())
    unknown = [(group, name) for group, name in choices if name not in groups.get(group, [name])]
    assert [choice for choice in unknown if choice not in READER_OPTIONS] == []


def test_options_that_have_never_been_run_are_those_that_say_unverified():
    """docs/measuring.md lists them; `fastloop list` and --help print the catalogue's words."""
    page = (REPOSITORY / "docs" / "measuring.md").read_text()
    section = re.split(r"\n## ", page.partition("## What has never been run\n")[2])[0]
    listed = re.findall(r"`([^`]+)`", section.rpartition("`unverified`:")[2])
    marked = [name.name for name in catalogue.settings() if "unverified" in name.meaning]
    for group in catalogue.groups():
        for option in group.options:
            name = f"{group.name}={option.name}"
            marked += [name] if "unverified" in option.meaning else []
            if any("unverified" in each.meaning for each in option.settings):
                marked += [name, *(e.name for e in option.settings if "unverified" in e.meaning)]
    assert sorted(set(listed)) == sorted(set(marked))


def test_workflow_for_pull_requests_is_yaml_with_settings_of_check():
    blocks = [each[2] for each in FENCE.findall((REPOSITORY / "docs" / "commands.md").read_text())]
    (text,) = [each for each in blocks if "pull_request" in each]
    workflow = yaml.safe_load(text)
    steps = workflow["jobs"]["check"]["steps"]
    (command,) = [each["run"] for each in steps if "fastloop check" in each.get("run", "")]
    names = {word.partition("=")[0] for word in shlex.split(command)[2:]}
    assert names == {"against", "markdown"}
    # All commits are needed: the base is one of them.
    assert steps[0]["with"]["fetch-depth"] == 0
    comments = [each for each in steps if "comment.md" in each.get("run", "")]
    assert len(comments) == 2


def test_choosing_page_has_every_loader_dataset_and_decoder():
    text = (REPOSITORY / "docs" / "choosing.md").read_text()
    names = [name for group in ("loader", "dataset") for name in catalogue.options_of(group)]
    names += [f"decoder={name}" for name in catalogue.options_of("decoder")]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.heavy
def test_cells_of_the_notebook_run_and_show_tables():
    """Each cell runs as in a notebook: the value of its last expression is shown."""
    notebook = json.loads((REPOSITORY / "docs" / "notebook.ipynb").read_text())
    namespace: dict[str, object] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []  # figures of another machine do not belong here
        *statements, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(statements, []), "<cell>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
            shown.append(value)
        else:
            exec(compile(ast.Module([last], []), "<cell>", "exec"), namespace)
    kinds = {type(value).__name__ for value in shown if hasattr(value, "_repr_html_")}
    assert kinds == {"BenchResult", "Bench", "DataFrame", "LoopExplanation", "LoopTuning"}


def test_api_page_has_every_public_name():
    names = re.findall(r":: ([\w.]+)$", (REPOSITORY / "docs" / "api.md").read_text(), re.M)
    assert {*fastloop.__all__} - {*names} == {"explain", "tune"}  # packages
    assert {
        "fastloop.explain.explain_loop.explain_loop",
        "fastloop.tune.loop_tuning.tune_loop",
    } <= {*names}


@pytest.mark.heavy
@pytest.mark.nightly  # `make check`, which .ci/run runs, builds it too
def test_documentation_site_builds_without_warnings(tmp_path):
    command = [BIN / "sphinx-build", "-W", "-q", "-c", "docs", "-d", tmp_path / "trees", "."]
    process = subprocess.run(
        [*command, tmp_path / "html"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    for page in PAGES[1:]:
        assert (tmp_path / "html" / "docs" / f"{page.stem}.html").exists()
    # Names break behind their signs on the width of a phone, not inside of words.
    options = (tmp_path / "html" / "docs" / "options.html").read_text()
    assert ">multiprocessing_</span><wbr>" in options
