"""Names and docstrings of the package: unique class names, no participles, no leading pronouns."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fastloop

PACKAGE = Path(fastloop.__file__).parent
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
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


class Definition(NamedTuple):
    """A module, a class or a function of the package."""

    path: Path
    """Path of its file in the package."""
    line: int
    kind: type
    name: str
    docstring: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


@pytest.fixture(scope="module")
def definitions() -> list[Definition]:
    """All definitions. Parsing takes seconds, so one process runs these tests."""
    return [
        Definition(
            path=path.relative_to(PACKAGE),
            line=getattr(node, "lineno", 1),
            kind=type(node),
            name=getattr(node, "name", path.stem),
            docstring=ast.get_docstring(node) or "",
        )
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in defining_nodes(ast.parse(path.read_text()))
    ]


def defining_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The module, and all classes and functions in it; expressions define none of them."""
    if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from defining_nodes(child)


def in_folder(definitions: list[Definition], folder: str) -> list[Definition]:
    """The definitions in a folder; ".": those of the package's own modules."""
    return [each for each in definitions if str(each.path.parent).split("/")[0] == folder]


def is_participle(function: str) -> bool:
    first = function.strip("_").split("_")[0]
    if function in STANDARD_NAMES or first in NO_PARTICIPLES:
        return False
    return first in IRREGULAR or (first.endswith("ed") and not first.endswith("eed"))


def test_class_names_are_unique(definitions):
    places = defaultdict(list)
    for each in definitions:
        if each.kind is ast.ClassDef:
            places[each.name].append(each.place)
    assert {name: lines for name, lines in places.items() if len(lines) > 1} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_function_names_begin_with_no_participle(definitions, folder):
    functions = [each for each in in_folder(definitions, folder) if each.kind in FUNCTIONS]
    assert [(each.place, each.name) for each in functions if is_participle(each.name)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_no_pronoun(definitions, folder):
    docstrings = [(each.place, each.docstring) for each in in_folder(definitions, folder)]
    # the package's docstring is a question, which may begin so
    firsts = [(p, text.partition("\n")[0]) for p, text in docstrings if not text.endswith("?")]
    assert [(p, line) for p, line in firsts if line.lower().split(" ")[0] in PRONOUNS] == []
    assert [(p, line) for p, line in firsts if line.lower().startswith("the same ")] == []
