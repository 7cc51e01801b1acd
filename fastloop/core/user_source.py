"""The user's modules as text: whether a dotted name exists, and which arguments it takes.

A module of the user's imports torch as a rule, which takes seconds and may have other effects;
reading its text takes milliseconds. What the text does not show for certain is left to the import.
"""

from __future__ import annotations

import ast
import difflib
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from fastloop.core.user_code import Parameters, error_line

SHOWN_NAMES = 8
"""Most names that a message lists."""
DYNAMIC = ("globals", "locals", "vars", "exec", "eval", "setattr", "__import__")
"""Functions by which a module may get names that its text does not show."""
TORCH_BASES = ("Dataset", "IterableDataset")
"""Classes of torch whose constructor takes no arguments."""
MOST_STEPS = 8
"""Most modules and classes that are looked at in turn, each of which leads to the next."""
NOTHING = Parameters(names=(), required=frozenset(), takes_any=False)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.ClassDef | ast.ImportFrom | None


def read_parameters(path: str) -> Parameters | None:
    """The parameters of the class or function with that dotted name, from the text of its module;
    None if the text does not tell.

    Raises ValueError, in one line, if there is no such module or name, or a syntax error.
    """
    return _read_parameters(path, 0)


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A module that was found, but not imported."""

    name: str
    spec: ModuleSpec
    names: Mapping[str, Definition]
    """The names that it defines; None if it is not clear what a name stands for."""
    is_open: bool
    """True if it may have further names."""

    @property
    def submodules(self) -> list[str]:
        """Names of the modules in a package; empty for another module."""
        folders = self.spec.submodule_search_locations
        return [each.name for each in pkgutil.iter_modules(list(folders))] if folders else []


def _read_parameters(path: str, depth: int) -> Parameters | None:
    found = _find_module(path)
    if found is None:
        return None
    module, rest = found
    # Without a rest the name is that of a module; a longer one is that of a method or an attribute.
    if not rest:
        return None
    if rest[0] not in module.names:
        if module.is_open:
            return None
        raise ValueError(_describe_missing(module, rest))
    return _parameters_of(module, rest[0], depth) if len(rest) == 1 else None


def _find_module(path: str) -> tuple[_Module, list[str]] | None:
    """The module in which the name is looked up, and the rest of the name; None if it can't be
    read, or is imported already. Raises ValueError if there is no such module."""
    first, *rest = path.split(".")
    if first in sys.modules:
        return None
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None:
        raise ValueError(_describe_missing_module(first, rest))
    name = first
    while rest and (folders := spec.submodule_search_locations):
        inner = PathFinder.find_spec(f"{name}.{rest[0]}", list(folders))
        if inner is None:
            break
        spec, name = inner, f"{name}.{rest[0]}"
        del rest[0]
    return _read_module(name, spec), rest


def _read_module(name: str, spec: ModuleSpec) -> _Module:
    path = spec.origin or ""
    # A namespace package has no file, and modules in C have no text.
    if not path.endswith(".py"):
        is_open = path != ""
        return _Module(name=name, spec=spec, names={}, is_open=is_open)
    names, is_open = _names_in_file(path)
    return _Module(name=name, spec=spec, names=names, is_open=is_open)


@cache
def _names_in_file(path: str) -> tuple[Mapping[str, Definition], bool]:
    """The names that the module in the file defines, and True if it may have further ones.

    Raises ValueError for a syntax error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Path(path).read_bytes(), Path(path).name)
    except SyntaxError as error:
        raise ValueError(error_line(error)) from None
    # The import tells what is wrong with a file that can't be read, or that holds null bytes.
    except (OSError, ValueError):
        return {}, True
    visitor = _NameVisitor()
    visitor.visit(tree)
    return visitor.names, visitor.is_open


class _NameVisitor(ast.NodeVisitor):
    """Collects the names that a module binds outside of its functions and classes."""

    def __init__(self) -> None:
        self.names: dict[str, Definition] = {}
        self.is_open = False

    def visit_FunctionDef(self, node: Function | ast.ClassDef) -> None:
        """Bind its name; the names inside are its own, except global ones."""
        self._bind(node.name, None if isinstance(node, ast.AsyncFunctionDef) else node)
        self.is_open = self.is_open or node.name == "__getattr__"
        for inner in ast.walk(node):
            if isinstance(inner, ast.Global):
                for name in inner.names:
                    self._bind(name, None)
            self._note_dynamic(inner)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815 - names of ast

    def visit_Import(self, node: ast.Import) -> None:
        """Bind the modules' names."""
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0], None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Bind the imported names; `*` may bring any."""
        for alias in node.names:
            self.is_open = self.is_open or alias.name == "*"
            self._bind(alias.asname or alias.name, node)

    def visit_Match(self, node: ast.Match) -> None:
        """Patterns bind names in many ways."""
        self.is_open = True
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """Bind the error's name."""
        if node.name:
            self._bind(node.name, None)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Bind variables."""
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self._bind(node.id, None)
        self._note_dynamic(node)
        super().generic_visit(node)

    def _bind(self, name: str, node: Definition) -> None:
        # Of two definitions, as in try and except, either may be the one that counts.
        self.names[name] = node if name not in self.names else None

    def _note_dynamic(self, node: ast.AST) -> None:
        is_call = isinstance(node, ast.Name) and node.id in DYNAMIC
        is_table = isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules"
        self.is_open = self.is_open or is_call or is_table


def _parameters_of(module: _Module, name: str, depth: int) -> Parameters | None:
    node = module.names[name]
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else _of_arguments(node.args, 0)
    if isinstance(node, ast.ClassDef):
        return _of_class(module, node, depth)
    if isinstance(node, ast.ImportFrom) and depth < MOST_STEPS:
        path = _path_of_import(module, node, name)
        # The module may be absent, and its import be caught: the import will tell.
        try:
            return _read_parameters(path, depth + 1) if path else None
        except ValueError:
            return None
    return None


def _path_of_import(module: _Module, node: ast.ImportFrom, name: str) -> str:
    """The dotted name of the object that `from … import …` binds to this name; empty if the module
    is beyond its package."""
    own = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
    if not node.level:
        return f"{node.module}.{own}"
    is_package = module.spec.submodule_search_locations is not None
    parts = module.name.split(".")
    kept = len(parts) - node.level + is_package
    above = [*parts[:kept], *([node.module] if node.module else [])] if kept > 0 else []
    return ".".join([*above, own]) if above else ""


def _of_class(module: _Module, node: ast.ClassDef, depth: int) -> Parameters | None:
    methods = [each for each in ast.walk(node) if isinstance(each, Function)]
    assigned = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    makers = [each for each in methods if each.name in ("__init__", "__new__")]
    if node.keywords or {"__init__", "__new__"} & assigned:
        return None
    if len(makers) == 1 and makers[0].name == "__init__" and makers[0] in node.body:
        is_plain = not makers[0].decorator_list and not node.decorator_list
        return _of_arguments(makers[0].args, 1) if is_plain else None
    if makers or len(node.bases) > 1:
        return None
    if node.decorator_list:
        return _of_dataclass(module, node)
    return _of_base(module, node.bases[0], depth) if node.bases else NOTHING


def _of_base(module: _Module, base: ast.expr, depth: int) -> Parameters | None:
    """The parameters that a class without a constructor has from its base."""
    # Dataset[int] takes what Dataset takes.
    base = base.value if isinstance(base, ast.Subscript) else base
    if _is_torch_base(module, base):
        return NOTHING
    if not isinstance(base, ast.Name) or base.id not in module.names or depth >= MOST_STEPS:
        return None
    return _parameters_of(module, base.id, depth + 1)


def _is_torch_base(module: _Module, base: ast.expr) -> bool:
    """True for torch's Dataset and IterableDataset."""
    first, _, _ = (text := ast.unparse(base)).partition(".")
    if text.rpartition(".")[2] not in TORCH_BASES:
        return False
    node = module.names.get(first)
    return text.startswith("torch.") or (
        isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"
    )


def _of_dataclass(module: _Module, node: ast.ClassDef) -> Parameters | None:
    """The fields of a plain dataclass; None for other decorators and for settings of fields."""
    (decorator, *others) = node.decorator_list
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    is_dataclass = ast.unparse(called) in ("dataclass", "dataclasses.dataclass")
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    text = "".join(ast.unparse(each) for each in (decorator, *fields))
    unclear = others or "init=" in text or "KW_ONLY" in text
    if not is_dataclass or unclear or not all(_is_torch_base(module, each) for each in node.bases):
        return None
    own = [each for each in fields if "ClassVar" not in ast.unparse(each.annotation)]
    return Parameters(
        names=tuple(ast.unparse(each.target) for each in own),
        required=frozenset(ast.unparse(each.target) for each in own if each.value is None),
        takes_any=False,
    )


def _of_arguments(arguments: ast.arguments, first: int) -> Parameters | None:
    """The parameters after the first ones, which Python passes itself."""
    if len(arguments.posonlyargs) > first:
        return None
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    required = positional[first : len(positional) - len(arguments.defaults)]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required += [each.arg for each, default in by_name if default is None]
    return Parameters(
        names=(*positional[first:], *(each.arg for each in arguments.kwonlyargs)),
        required=frozenset(required),
        takes_any=arguments.kwarg is not None,
    )


def _describe_missing(module: _Module, rest: Sequence[str]) -> str:
    """The message for a name that the module does not have."""
    name, *further = rest
    defined = [
        each
        for each, node in module.names.items()
        if not each.startswith("_") and (isinstance(node, ast.FunctionDef | ast.ClassDef))
    ]
    known = [*defined, *module.submodules]
    all_names = [each for each in (*module.names, *module.submodules) if not each.startswith("_")]
    meant = closest_name(name, known) or closest_name(name, all_names)
    hint = f"; did you mean {'.'.join([module.name, meant, *further])}?" if meant else ""
    listed = f"; it has {', '.join(known)}" if 0 < len(known) <= SHOWN_NAMES else ""
    return f"the module {module.name} has no {name}{hint or listed}"


def _describe_missing_module(name: str, rest: Sequence[str]) -> str:
    """The message for a module that is neither in the working folder nor installed."""
    # Python finds modules of the working folder first, which is usually where the user's are.
    found = [each.name for each in pkgutil.iter_modules([str(Path.cwd())])]
    known = [each for each in found if each.isidentifier()]
    meant = closest_name(name, known)
    hint = f"; did you mean {'.'.join([meant, *rest])}?" if meant else ""
    listed = f"; the working folder has {', '.join(known)}" if known else ""
    shown = listed if len(known) <= SHOWN_NAMES else ""
    return f"there is no module {name}{hint or shown}"


def closest_name(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, whatever its case; empty if none is."""
    by_lower = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else ""
