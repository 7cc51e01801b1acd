"""Read the parameters of a user's class or function from the text of its module, without importing
the module; a dotted name that does not exist is an error.

A user's module usually imports torch, which takes seconds and may have other effects; reading its
text takes milliseconds. If the text leaves a doubt, `read_parameters` returns None, and the import
decides. Doubtful are bindings under `if` or `try`, decorators, metaclasses, several bases, and
names that code may change.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import find_spec
from pathlib import Path

from fastloop.core.module_text import (
    SIGNATURE_NAMES,
    Definition,
    Function,
    ModuleText,
    WrongCodeError,
    read_module_text,
)
from fastloop.core.similar_names import closest_name, suggest
from fastloop.core.user_code import Parameters

SHOWN_NAMES = 8
"""Maximum number of names that a message lists."""
TORCH_BASES = ("Dataset", "IterableDataset")
"""Classes of torch with a constructor that takes no arguments."""
MOST_STEPS = 8
"""Maximum number of modules and classes that are followed from one to the next."""
NOTHING = Parameters(names=(), required=frozenset(), takes_any=False)
ANYTHING = Parameters(names=(), required=frozenset(), takes_any=True)
"""The parameters of a class that takes no arguments, and of a class that takes any."""


def read_parameters(path: str) -> Parameters | None:
    """The parameters of the class or function with that dotted name, from the text of its module;
    None if the text does not tell.

    Raises ValueError, in one line, if there is no such module or name, or a syntax error.
    """
    try:
        return _read_parameters(path, 0)
    except WrongCodeError:
        raise
    # Other errors are not about the user's code: finders of other packages, deeply nested text, or
    # an unreadable folder may raise them. The import may succeed all the same.
    except Exception:
        return None


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A module that was found, but not imported."""

    name: str
    spec: ModuleSpec
    text: ModuleText

    @property
    def names(self) -> Mapping[str, Definition]:
        """The names that the module defines."""
        return self.text.names

    @property
    def submodules(self) -> list[str]:
        """Names of the modules in a package; empty for another module."""
        folders = self.spec.submodule_search_locations
        return [each.name for each in pkgutil.iter_modules(list(folders))] if folders else []


def _read_parameters(path: str, depth: int) -> Parameters | None:
    """As `read_parameters`. depth: number of imports and base classes that led to this name."""
    found = _find_module(path)
    if found is None:
        return None
    module, rest = found
    # Without a rest, the path names a module. With a rest of several names, it names a method or
    # another attribute.
    if not rest:
        return None
    if rest[0] not in module.names:
        if module.text.is_open:
            return None
        raise WrongCodeError(_describe_missing(module, rest))
    return _parameters_of(module, rest[0], depth) if len(rest) == 1 else None


def _find_module(path: str) -> tuple[_Module, list[str]] | None:
    """The module in which the name is looked up, and the rest of the name; None if the module can't
    be read, or is imported already. Raises ValueError if there is no such module."""
    first, *rest = path.split(".")
    if first in sys.modules:
        return None
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None:
        raise WrongCodeError(_describe_missing_module(first, rest))
    module = _read_module(first, spec)
    while rest and (folders := module.spec.submodule_search_locations):
        # Importing a module imports its package first, which may change the module.
        if module.text.is_dynamic:
            return None
        name = f"{module.name}.{rest[0]}"
        inner = _find_submodule(name, list(folders))
        if inner is None:
            break
        module = _read_module(name, inner)
        del rest[0]
    return module, rest


def _find_submodule(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """The module with that dotted name in a package with these folders; None if there is none."""
    # PathFinder can't be used: for a package without __init__.py it looks in sys.modules, and this
    # package has not been imported.
    portions: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = finder.find_spec(name) if finder else None
        if spec and spec.loader:
            return spec
        portions += (spec and spec.submodule_search_locations) or []
    if portions:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = portions
        return spec
    # Editable installations have finders of their own.
    usual = (BuiltinImporter, FrozenImporter, PathFinder)
    for other in sys.meta_path:
        if other not in usual and (spec := other.find_spec(name, list(folders))):
            return spec
    return None


def _read_module(name: str, spec: ModuleSpec) -> _Module:
    path = spec.origin or ""
    # A namespace package has no file, modules in C have no text, and loaders of other classes may
    # change the text.
    if path.endswith(".py") and type(spec.loader) is SourceFileLoader:
        return _Module(name=name, spec=spec, text=read_module_text(path))
    return _Module(name=name, spec=spec, text=ModuleText(names={}, is_open=path != ""))


def _parameters_of(module: _Module, name: str, depth: int) -> Parameters | None:
    """The parameters of the class or function that the module defines or imports by this name."""
    node = module.names[name]
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else _argument_parameters(node.args, 0)
    if isinstance(node, ast.ClassDef):
        return _class_parameters(module, node, depth)
    if isinstance(node, ast.ImportFrom) and depth < MOST_STEPS:
        path = _path_of_import(module, node, name)
        # The module may be absent, and its import be caught: the import will tell.
        try:
            return _read_parameters(path, depth + 1) if path else None
        except WrongCodeError:
            return None
    return None


def _path_of_import(module: _Module, node: ast.ImportFrom, name: str) -> str:
    """The dotted name of the object that `from … import …` binds to this name; empty if the module
    is beyond its package."""
    own = _name_of_import(node, name)
    if not node.level:
        return f"{node.module}.{own}"
    is_package = module.spec.submodule_search_locations is not None
    parts = module.name.split(".")
    kept = len(parts) - node.level + is_package
    above = [*parts[:kept], *([node.module] if node.module else [])] if kept > 0 else []
    return ".".join([*above, own]) if above else ""


def _class_parameters(module: _Module, node: ast.ClassDef, depth: int) -> Parameters | None:
    """The parameters of a class, from its __init__, its fields as a dataclass, or its base."""
    inner = [*ast.walk(node)]
    makers = [each for each in inner if isinstance(each, Function) and each.name == "__init__"]
    bound = {each.id for each in inner if isinstance(each, ast.Name)}
    bound |= {each.asname or each.name for each in inner if isinstance(each, ast.alias)}
    bound |= {each.name for each in inner if isinstance(each, Function) and each not in makers}
    # Keywords: a metaclass, or arguments of a base's __init_subclass__.
    if node.keywords or len(node.bases) > 1 or ({*SIGNATURE_NAMES} - {"__call__"}) & bound:
        return None
    # A metaclass or a __new__ of the base decides even if the class has an __init__ of its own.
    inherited = _base_parameters(module, node.bases[0], depth) if node.bases else NOTHING
    if inherited is None:
        return None
    if node.decorator_list:
        return None if makers else _dataclass_parameters(module, node)
    if not makers:
        return inherited
    (maker, *others) = makers
    is_plain = not others and maker in node.body and not maker.decorator_list
    return _argument_parameters(maker.args, 1) if is_plain else None


def _base_parameters(module: _Module, base: ast.expr, depth: int) -> Parameters | None:
    """The parameters that a class inherits from its base if it has no __init__ of its own."""
    # Dataset[int] takes what Dataset takes.
    base = base.value if isinstance(base, ast.Subscript) else base
    if _is_torch_base(module, base, TORCH_BASES):
        return NOTHING
    if _is_torch_base(module, base, ("Module",)):
        return ANYTHING
    if not isinstance(base, ast.Name) or depth >= MOST_STEPS:
        return None
    if base.id == "object" and base.id not in module.names:
        return NOTHING
    # A function is not a base.
    node = module.names.get(base.id)
    is_function = isinstance(node, ast.FunctionDef)
    return None if node is None or is_function else _parameters_of(module, base.id, depth + 1)


def _is_torch_base(module: _Module, base: ast.expr, allowed: Sequence[str]) -> bool:
    """True if the base is one of torch's classes with these names."""
    first, _, _ = (text := ast.unparse(base)).partition(".")
    node = module.names.get(first)
    last = text
    if isinstance(node, ast.ImportFrom):
        is_torch = (node.module or "").partition(".")[0] == "torch" and not node.level
        last = _name_of_import(node, first) if text == first else text
    else:
        is_torch = text.startswith("torch.")
    return is_torch and last.rpartition(".")[2] in allowed


def _name_of_import(node: ast.ImportFrom, name: str) -> str:
    """The name, in its own module, of the object that an import binds to `name`."""
    return next(alias.name for alias in node.names if (alias.asname or alias.name) == name)


def _dataclass_parameters(module: _Module, node: ast.ClassDef) -> Parameters | None:
    """The fields of a plain dataclass, as parameters; None for other decorators, and for settings
    such as init=False."""
    (decorator, *others) = node.decorator_list
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    text = "".join(ast.unparse(each) for each in (decorator, *fields))
    unclear = others or "init=" in text or "KW_ONLY" in text or "**" in text
    is_dataclass = _is_dataclass_decorator(module, decorator)
    if not is_dataclass or unclear or not _has_plain_fields(module, node):
        return None
    if not all(_is_torch_base(module, each, TORCH_BASES) for each in node.bases):
        return None
    own = [each for each in fields if "ClassVar" not in ast.unparse(each.annotation)]
    return Parameters(
        names=tuple(ast.unparse(each.target) for each in own),
        required=frozenset(ast.unparse(each.target) for each in own if each.value is None),
        takes_any=False,
    )


def _is_dataclass_decorator(module: _Module, decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    node = module.names.get("dataclass")
    # Other libraries have a `dataclass` of their own.
    is_imported = isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
    text = ast.unparse(called)
    return text == "dataclasses.dataclass" or (text == "dataclass" and is_imported)


def _has_plain_fields(module: _Module, node: ast.ClassDef) -> bool:
    """True if the class has only fields, functions and other variables, none of them twice, and no
    field's type is an alias of ClassVar or KW_ONLY."""
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    functions = [each for each in node.body if isinstance(each, Function)]
    variables = [each for each in node.body if isinstance(each, ast.Assign)]
    others = {*node.body} - {*fields, *functions, *variables}
    # A docstring, and `pass`; fields under `if` are there in some runs only.
    if not all(isinstance(each, ast.Expr | ast.Pass) for each in others):
        return False
    names = [ast.unparse(each.target) for each in fields]
    stored = {
        each.id for one in variables for each in ast.walk(one) if isinstance(each, ast.Name)
    } | {each.name for each in functions}
    types = {each.annotation.id for each in fields if isinstance(each.annotation, ast.Name)}
    unclear = {
        name
        for name in types & module.names.keys()
        if (bound := module.names[name]) is None
        or (isinstance(bound, ast.ImportFrom) and _name_of_import(bound, name) != name)
    }
    return len({*names}) == len(names) and not stored & {*names} and not unclear


def _argument_parameters(arguments: ast.arguments, first: int) -> Parameters | None:
    """The parameters without the first ones, such as `self`, which Python passes; None if others
    are positional-only.

    first: number of parameters that Python passes.
    """
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
    hint = f"; {suggest('.'.join([module.name, meant, *further]))}" if meant else ""
    listed = f"; it has {', '.join(known)}" if 0 < len(known) <= SHOWN_NAMES else ""
    return f"the module {module.name} has no {name}{hint or listed}"


def _describe_missing_module(name: str, rest: Sequence[str]) -> str:
    """The message for a module that is neither in the working folder nor installed."""
    # Python finds modules of the working folder first, which is usually where the user's are.
    found = [each.name for each in pkgutil.iter_modules([str(Path.cwd())])]
    known = [each for each in found if each.isidentifier()]
    meant = closest_name(name, known)
    hint = f"; {suggest('.'.join([meant, *rest]))}" if meant else ""
    listed = f"; the working folder has {', '.join(known)}" if known else ""
    shown = listed if len(known) <= SHOWN_NAMES else ""
    return f"there is no module {name}{hint or shown}"
