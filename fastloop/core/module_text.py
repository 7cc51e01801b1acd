"""Find the names that a module defines, from its text alone: importing the module takes longer."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastloop.core.user_code import error_line

DYNAMIC = (
    *("globals", "locals", "vars", "exec", "setattr", "__setattr__", "__import__"),
    *("import_module", "meta_path", "path_hooks", "_getframe", "currentframe", "global_enum"),
)
"""Names of functions and tables by which a module may change names in ways its text does not show.
"""
MODULE_NAMES = ("__name__", "__package__", "__spec__")
"""Variables that tell a called function which module to change."""
SIGNATURE_NAMES = (
    *("__init__", "__new__", "__call__", "__init_subclass__", "__signature__", "__annotations__"),
    *("__defaults__", "__kwdefaults__", "__code__", "__wrapped__", "__class__", "__bases__"),
)
"""Attributes that decide which arguments a class or function takes."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.ClassDef | ast.ImportFrom | None


class WrongCodeError(ValueError):
    """The user's code has no such module or name, or a syntax error."""


@dataclass(frozen=True, kw_only=True)
class ModuleText:
    """The names that the text of a module shows."""

    names: Mapping[str, Definition]
    """The names that the module defines; None if it is not clear what a name stands for."""
    is_open: bool
    """True if the module may have further names."""
    is_dynamic: bool = False
    """True if the module may change names of its own or of other modules."""


@cache
def read_module_text(path: str) -> ModuleText:
    """The names that the text of the file shows.

    Raises WrongCodeError for a syntax error. A file that can't be read counts as open and dynamic.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(Path(path).read_bytes(), Path(path).name)
    except SyntaxError as error:
        raise WrongCodeError(error_line(error)) from None
    # The import reports the error of a file that can't be read or parsed. Some older releases of
    # Python raise ValueError for null bytes, newer ones raise SyntaxError.
    except (OSError, ValueError):
        return ModuleText(names={}, is_open=True, is_dynamic=True)
    visitor = _NameVisitor(tree)
    visitor.visit(tree)
    return visitor.text


class _NameVisitor(ast.NodeVisitor):
    """Collects the names that a module binds outside of its functions and classes."""

    def __init__(self, tree: ast.Module) -> None:
        self.top = frozenset(tree.body)
        self.names: dict[str, Definition] = {}
        self.changed = set[str]()
        """Names of objects whose attributes are set, or that are passed to something else."""
        self.called = set[str]()
        """Names of objects whose methods are called."""
        self.is_open = False
        self.is_dynamic = False

    @property
    def text(self) -> ModuleText:
        """The collected names."""
        unclear = {*self.names} if self.is_dynamic else self._unclear_names()
        names = {name: None if name in unclear else node for name, node in self.names.items()}
        is_open = self.is_open or self.is_dynamic
        return ModuleText(names=names, is_open=is_open, is_dynamic=self.is_dynamic)

    def _unclear_names(self) -> set[str]:
        # A class may change itself; the functions of an imported module, as in nn.Linear(2, 2),
        # leave it as it is.
        is_import = {name for name, node in self.names.items() if isinstance(node, ast.ImportFrom)}
        return self.changed | (self.called - is_import)

    def visit_FunctionDef(self, node: Function | ast.ClassDef) -> None:
        """Bind the name of the function or class; names inside are local, except global ones."""
        self._bind(node.name, None if isinstance(node, ast.AsyncFunctionDef) else node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Global):
                for name in inner.names:
                    self._bind(name, None)
            self._note_changes(inner)
        for decorator in node.decorator_list:
            # A decorator that is a plain name is only called. A decorator with arguments may change
            # the objects that it receives.
            if isinstance(decorator, ast.Call):
                self.visit(decorator)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815 - names of ast

    def visit_Import(self, node: ast.Import) -> None:
        """Bind the modules' names."""
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0], None)
            self.is_dynamic = self.is_dynamic or (alias.name == "sys" and alias.asname is not None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Bind the imported names; `*` may import any name, and replace names bound above it."""
        for alias in node.names:
            if alias.name == "*":
                self.is_open = True
                self.names = dict.fromkeys(self.names)
            self._bind(alias.asname or alias.name, node)
        self._note_changes(node)

    def visit_Match(self, node: ast.Match) -> None:
        """Take any name to be possible: patterns bind names in many ways."""
        self.is_open = self.is_dynamic = True
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """Bind the error's name."""
        if node.name:
            self._bind(node.name, None)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Note the object of a called method, and whether the call receives the module's name, with
        which a function may change the module."""
        given = [*node.args, *(each.value for each in node.keywords)]
        is_told = any(isinstance(each, ast.Name) and each.id in MODULE_NAMES for each in given)
        is_logger = "logger" in ast.unparse(node.func).lower()
        self.is_open = self.is_open or (is_told and not is_logger)
        for each in given:
            self.visit(each)
        root = node.func
        while isinstance(root, ast.Attribute):
            self._note_changes(root)
            root = root.value
        if not isinstance(root, ast.Name):
            self.visit(root)
            return
        self._note_changes(root)
        if root is not node.func:
            self.called.add(root.id)

    def generic_visit(self, node: ast.AST) -> None:
        """Bind variables."""
        if isinstance(node, ast.Name):
            # Whatever else holds the object, such as a list or a function, may change it.
            if isinstance(node.ctx, ast.Load):
                self.changed.add(node.id)
            else:
                self._bind(node.id, None)
        self._note_changes(node)
        super().generic_visit(node)

    def _bind(self, name: str, node: Definition) -> None:
        # Of two definitions, either may count; a definition under `if` or in `try` may not count.
        is_clear = node in self.top and name not in self.names
        self.names[name] = node if is_clear else None
        self.is_open = self.is_open or name == "__getattr__"

    def _note_changes(self, node: ast.AST) -> None:
        """Note whether a node, at any depth, may change names or signatures."""
        if isinstance(node, ast.Name):
            self.is_dynamic = self.is_dynamic or node.id in (*DYNAMIC, "eval")
            self.is_open = self.is_open or node.id == "__path__"
        elif isinstance(node, ast.ImportFrom):
            unclear = {*DYNAMIC, *(("modules", "path") if node.module == "sys" else ())}
            is_given = any(each.name in unclear for each in node.names)
            self.is_dynamic = self.is_dynamic or is_given
        elif isinstance(node, ast.Attribute):
            is_set = not isinstance(node.ctx, ast.Load)
            # The object may have a second name, such as `self` or `cls`.
            of_signature = is_set and node.attr in SIGNATURE_NAMES
            is_table = node.attr in DYNAMIC or ast.unparse(node) in ("sys.path", "sys.modules")
            self.is_dynamic = self.is_dynamic or of_signature or is_table
            if is_set:
                self.changed |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
