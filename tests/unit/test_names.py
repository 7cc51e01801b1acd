"""Names and docstrings of the package: unique class names, no participles, no leading pronouns."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import fastloop

PACKAGE = Path(fastloop.__file__).parent
FOLDERS = [".", *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))]

PRONOUNS = {"it", "its", "this", "these", "those", "they", "them", "their", "what", "which", "who"}
PRONOUNS |= {"whose", "that", "such", "one", "where", "how"}
IRREGULAR = {"begun", "bound", "bought", "brought", "built", "caught", "chosen", "done", "drawn"}
IRREGULAR |= {"found", "given", "gone", "got", "grown", "held", "hidden", "kept", "known", "laid"}
IRREGULAR |= {"left", "lent", "made", "met", "said", "seen", "sent", "shown", "sought", "spent"}
IRREGULAR |= {"spoken", "taken", "told", "thrown", "woken", "worn", "written"}
NO_PARTICIPLES = {"embed", "exceed", "feed", "need", "nested", "red", "seed", "shed", "speed"}
STANDARD_NAMES = {"converted"}
"""Public names, for which the field has no other term."""


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The modules by their paths. Parsing them takes seconds, so one process runs these tests."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in paths}


def nodes(trees: dict[str, ast.Module], folder: str, *kinds: type) -> list[tuple[str, ast.AST]]:
    """(file:line, node) of each node of these kinds in a folder; ".": the package's own modules."""
    return [
        (f"{name}:{getattr(node, 'lineno', 1)}", node)
        for name, tree in trees.items()
        if str(Path(name).parent).split("/")[0] == folder
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]


def is_participle(function: str) -> bool:
    first = function.strip("_").split("_")[0]
    if function in STANDARD_NAMES or first in NO_PARTICIPLES:
        return False
    return first in IRREGULAR or (first.endswith("ed") and not first.endswith("eed"))


def test_class_names_are_unique(trees):
    places = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    assert {name: lines for name, lines in places.items() if len(lines) > 1} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_function_names_begin_with_no_participle(trees, folder):
    functions = nodes(trees, folder, ast.FunctionDef, ast.AsyncFunctionDef)
    assert [(place, node.name) for place, node in functions if is_participle(node.name)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_no_pronoun(trees, folder):
    documented = nodes(
        trees, folder, ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    )
    docstrings = [(place, ast.get_docstring(node) or "") for place, node in documented]
    # the package's docstring is a question, which may begin so
    firsts = [(p, text.partition("\n")[0]) for p, text in docstrings if not text.endswith("?")]
    assert [(p, line) for p, line in firsts if line.lower().split(" ")[0] in PRONOUNS] == []
    assert [(p, line) for p, line in firsts if line.lower().startswith("the same ")] == []
