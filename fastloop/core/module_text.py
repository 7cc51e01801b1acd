"""Read from a module's text which names the module defines, because an import takes longer.

*Outer code* is a module's code outside of functions and classes. A *definition* is a `def`, a class
or a `from … import`. A name is *clear* if the text shows, by the rules below, which definition the
name stands for after the import, and that no code changes the arguments of the defined object.

1. A module defines the names that its outer code binds (by definitions, imports, assignments, loops
   and the like), and the names that its functions and classes declare `global` (`_bindings`).
2. A name is clear only if it is bound once, by a definition that is a statement of the module's
   body, not under `if` or in `try`; and if no `import *` follows (`_definitions`).
3. A name is clear only if no code may change the name's object. That is: no code sets an attribute
   of the object (`_names_with_set_attributes`); outer code uses the object for nothing but calls,
   such as `f(x)` and `a.f(x)` (`_names_handed_on`); and outer code calls no method of a class or
   function that the module defines itself (`_names_with_method_calls`).
4. A module is *dynamic* if it may change names or arguments, in itself or in other modules, in ways
   that the text does not show (`_is_dynamic`). No name of a dynamic module is clear.
5. A module is *open* if it may have names that the text does not show (`_is_open`). A dynamic
   module is open.

`_read_tree` joins the rules. An import has to tell the arguments of a name that is not clear.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastloop.core.user_code import error_line

NAME_CHANGERS = (
    *("globals", "locals", "vars", "exec", "setattr", "__setattr__", "__import__"),
    *("import_module", "meta_path", "path_hooks", "_getframe", "currentframe", "global_enum"),
)
"""Names of functions and tables by which a module may change names in ways its text does not show.
"""
SYS_TABLES = ("sys.modules", "sys.path")
"""Tables that decide which module an import finds. Other modules have a `path` too, such as os."""
MODULE_NAMES = ("__name__", "__package__", "__spec__")
"""Variables that tell a called function which module to change."""
SIGNATURE_NAMES = (
    *("__init__", "__new__", "__call__", "__init_subclass__", "__signature__", "__annotations__"),
    *("__defaults__", "__kwdefaults__", "__code__", "__wrapped__", "__class__", "__bases__"),
)
"""Attributes that decide which arguments a class or function takes."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.ClassDef | ast.ImportFrom | None
"""The node that defines a name; None if the name is not clear."""


class WrongCodeError(ValueError):
    """The user's code has no such module or name, or a syntax error."""


@dataclass(frozen=True, kw_only=True)
class ModuleText:
    """The names that the text of a module shows."""

    names: Mapping[str, Definition]
    """The names that the module defines, each with its definition; None if the name is not clear.
    """
    is_open: bool
    """True if the module may have further names."""
    is_dynamic: bool = False
    """True if the module may change names or arguments, in itself or in other modules, in ways that
    the text does not show."""


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
    return _read_tree(tree)


def _read_tree(tree: ast.Module) -> ModuleText:
    """The names that the syntax tree of a module shows, by the rules in this file's docstring."""
    code = _OuterCode()
    code.visit(tree)
    outer = code.nodes
    everywhere = [*ast.walk(tree)]
    names = _definitions(tree, outer)
    if _is_dynamic(outer, everywhere):
        return ModuleText(names=dict.fromkeys(names), is_open=True, is_dynamic=True)
    changeable = _names_with_set_attributes(everywhere) | _names_handed_on(outer)
    # Methods of a class may change the class. The functions of an imported module, as in
    # nn.Linear(2, 2), leave the module as it is.
    imports = {name for name, node in names.items() if isinstance(node, ast.ImportFrom)}
    changeable |= _names_with_method_calls(outer) - imports
    return ModuleText(
        names={name: None if name in changeable else node for name, node in names.items()},
        is_open=_is_open(names, outer, everywhere),
    )


class _OuterCode(ast.NodeVisitor):
    """Lists the nodes of a module's outer code.

    The list leaves out the names of called objects, with their attributes: `f` in `f(x)`, and
    `a.b.f` in `a.b.f(x)`. Other names in the list are names that the code binds or hands on.
    """

    def __init__(self) -> None:
        self.nodes: list[ast.AST] = []
        """The nodes, each one before the nodes inside it."""

    def visit_FunctionDef(self, node: Function | ast.ClassDef) -> None:
        """List the function or class, and of the code inside only decorators with arguments."""
        self.nodes.append(node)
        for decorator in node.decorator_list:
            # A decorator without arguments is only called, with the function or class that it
            # decorates. A decorator with arguments may change the objects that it receives.
            if isinstance(decorator, ast.Call):
                self.visit(decorator)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815 - names of ast

    def visit_Call(self, node: ast.Call) -> None:
        """List the call, its arguments, and the expression that yields the called object."""
        self.nodes.append(node)
        for argument in _arguments(node):
            self.visit(argument)
        owner = _owner(node)
        if not isinstance(owner, ast.Name):
            self.visit(owner)

    def generic_visit(self, node: ast.AST) -> None:
        """List any other node, and the nodes inside it."""
        self.nodes.append(node)
        super().generic_visit(node)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _owner(call: ast.Call) -> ast.expr:
    """The expression before the attributes of the called object: `a` in `a.b.f(x)`, and `f` in
    `f(x)`."""
    owner = call.func
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return owner


def _bindings(node: ast.AST) -> list[tuple[str, Definition]]:
    """The names that a node of outer code binds, each with the node if the node is a definition of
    the name, and otherwise with None (rule 1)."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            inner = [each for each in ast.walk(node) if isinstance(each, ast.Global)]
            # An async function is no definition: its calls make coroutines, which the user's
            # datasets and loaders are not.
            own = None if isinstance(node, ast.AsyncFunctionDef) else node
            return [(node.name, own), *((name, None) for each in inner for name in each.names)]
        case ast.ImportFrom():
            return [(alias.asname or alias.name, node) for alias in node.names]
        case ast.Import():
            # `import a.b` binds `a`.
            return [(alias.asname or alias.name.partition(".")[0], None) for alias in node.names]
        case ast.ExceptHandler(name=str(name)) | ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [(name, None)]
        case _:
            return []


def _definitions(tree: ast.Module, outer: Iterable[ast.AST]) -> dict[str, Definition]:
    """The names that the module defines, in the order of their first bindings, each with its
    definition; None if several bindings, or a binding that may not happen, leave a doubt (rule 2).
    """
    body = {*tree.body}
    names: dict[str, Definition] = {}
    for node in outer:
        for name, definition in _bindings(node):
            # `import *` may replace all names that are bound above it.
            if name == "*":
                names = dict.fromkeys(names)
            # Of two bindings, either may count; a binding under `if` or in `try` may not happen.
            is_clear = definition in body and name not in names
            names[name] = definition if is_clear else None
    return names


def _names_with_set_attributes(everywhere: Iterable[ast.AST]) -> set[str]:
    """The names before attributes that are assigned or deleted: `a` in `a.x = 1`, `b` and `i` in
    `del b[i].x` (rule 3)."""
    targets = [each for each in everywhere if _is_set_attribute(each)]
    return {each.id for one in targets for each in ast.walk(one) if isinstance(each, ast.Name)}


def _is_set_attribute(node: ast.AST) -> bool:
    """True if the node is an attribute that is assigned or deleted."""
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)


def _names_handed_on(outer: Iterable[ast.AST]) -> set[str]:
    """The names that outer code uses otherwise than for calls (rule 3).

    outer: nodes of `_OuterCode`, which leaves out the names of called objects.
    """
    # A list, a function or a variable may receive the object, and any code may change it there.
    return {
        each.id for each in outer if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


def _names_with_method_calls(outer: Iterable[ast.AST]) -> set[str]:
    """The names of objects that have methods called by outer code: `a` in `a.b.f(x)` (rule 3)."""
    calls = [each for each in outer if isinstance(each, ast.Call)]
    owners = [_owner(each) for each in calls if isinstance(each.func, ast.Attribute)]
    return {each.id for each in owners if isinstance(each, ast.Name)}


def _is_dynamic(outer: Iterable[ast.AST], everywhere: Iterable[ast.AST]) -> bool:
    """True if the module may change names or arguments in ways that its text does not show
    (rule 4)."""
    # Patterns bind names in many ways, which `_bindings` does not follow.
    has_patterns = any(isinstance(each, ast.Match) for each in outer)
    # `_may_change_names` does not recognise the tables of sys under another name of sys.
    imports = [alias for each in outer if isinstance(each, ast.Import) for alias in each.names]
    renames_sys = any(alias.name == "sys" and alias.asname is not None for alias in imports)
    return has_patterns or renames_sys or any(_may_change_names(each) for each in everywhere)


def _may_change_names(node: ast.AST) -> bool:
    """True if the node uses or imports a means of changing names, or sets a signature."""
    match node:
        # An attribute `eval` is usually a method, such as that of torch's modules.
        case ast.Name(id=name):
            return name in (*NAME_CHANGERS, "eval")
        case ast.ImportFrom(module=module, names=aliases):
            return any(
                alias.name in NAME_CHANGERS or f"{module}.{alias.name}" in SYS_TABLES
                for alias in aliases
            )
        case ast.Attribute(attr=name):
            # The changed object may have a second name, such as `cls`, which hides it from rule 3.
            sets_signature = _is_set_attribute(node) and name in SIGNATURE_NAMES
            return name in NAME_CHANGERS or sets_signature or ast.unparse(node) in SYS_TABLES
        case _:
            return False


def _is_open(
    names: Mapping[str, Definition], outer: Iterable[ast.AST], everywhere: Iterable[ast.AST]
) -> bool:
    """True if a module that is not dynamic may have names that its text does not show (rule 5)."""
    # `import *` binds the name "*" in `names`. Python calls a module's `__getattr__` for any name
    # that the module lacks.
    if "*" in names or "__getattr__" in names:
        return True
    # A package that uses its `__path__` may add folders, which hold further modules.
    if any(isinstance(each, ast.Name) and each.id == "__path__" for each in everywhere):
        return True
    return any(isinstance(each, ast.Call) and _tells_module(each) for each in outer)


def _tells_module(call: ast.Call) -> bool:
    """True if the call tells the called function which module to change."""
    given = _arguments(call)
    is_told = any(isinstance(each, ast.Name) and each.id in MODULE_NAMES for each in given)
    # logging.getLogger(__name__) makes a logger, and leaves the module as it is.
    return is_told and "logger" not in ast.unparse(call.func).lower()
