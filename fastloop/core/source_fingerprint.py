"""Fingerprints of source code: of an option with the user's modules that it imports, and of
fastloop itself, with its git commit."""

from __future__ import annotations

import ast
import importlib.util
import site
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

from fastloop.core.fingerprints import fingerprint
from fastloop.core.installed_folders import INSTALLED_IN

PACKAGE = Path(__file__).resolve().parents[1]
"""fastloop's folder; its code has its own version, see `code_version`."""


def source_fingerprint(thing: object) -> str:
    """Fingerprint of an object's source files; empty if there are none.

    These are the files of its class, of the user's code that its attribute `target` names, and of
    the modules that these files import, except installed ones.
    """
    names = [type(thing).__module__, _module_of(str(getattr(thing, "target", "")))]
    files: dict[str, Path] = {}
    for name in names:
        path = _file_of(sys.modules.get(name))
        if path and name not in files:
            files[name] = path
            _add_imported(path, sys.modules[name].__package__ or "", files)
    # The names are sorted, so that the order in which imports are found has no effect.
    helpers = sorted(files.keys() - set(names))
    texts = [
        # A source file may declare another encoding than UTF-8.
        files[name].read_bytes().decode(errors="surrogateescape")
        for name in [*dict.fromkeys(names), *helpers]
        if name in files
    ]
    return fingerprint(*texts) if texts else ""


def user_class_of(option: object) -> list[str]:
    """The dotted name of a user's own dataset or store class, as a list; empty for a class of
    fastloop. `name_of` does not tell a user's classes apart: all classes of a module have the same.
    """
    kind = type(option)
    is_users = kind.__module__.partition(".")[0] != __name__.partition(".")[0]
    return [f"{kind.__module__}.{kind.__qualname__}"] if is_users else []


@cache
def code_version() -> str:
    """Fingerprint of the names and texts of all .py, .c and .h files in fastloop's folder.

    An installed wheel contains the native core only in compiled form, which is not read. Yaml files
    are not read either, because each job contains their settings.
    """
    sources = sorted(path for suffix in ("py", "c", "h") for path in PACKAGE.rglob(f"*.{suffix}"))
    return fingerprint(*[(path.name, path.read_text(encoding="utf-8")) for path in sources])


@cache
def git_commit() -> str:
    """Commit of the checkout, with -dirty if its files differ; `unknown` outside a checkout."""
    # A virtual environment may be inside another project's checkout. Only a repository that tracks
    # these files is fastloop's.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"
    dirty = _git("diff-index", "--quiet", "HEAD") is None
    return (_git("rev-parse", "HEAD") or "unknown") + ("-dirty" if dirty else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.decode(errors="replace").strip()


def _module_of(target: str) -> str:
    """The imported module of a dotted name, which may continue with a class and its method."""
    name = target.rpartition(".")[0]
    while name and name not in sys.modules:
        name = name.rpartition(".")[0]
    return name


def _add_imported(path: Path, package: str, files: dict[str, Path]) -> None:
    """Add the files of the modules that a file imports, and that these import, by module name."""
    if not is_own(path):
        return
    for name in _names_in(path.read_bytes(), package):
        imported = None if name in files else _find_module(name)
        if imported and is_own(imported):
            files[name] = imported
            is_package = imported.name == "__init__.py"
            _add_imported(imported, name if is_package else name.rpartition(".")[0], files)


@cache
def is_own(path: Path) -> bool:
    """True for a user's own file: neither installed, nor Python's, nor fastloop's."""
    # The names of folders show libraries, too: a .pth file or PYTHONPATH may add the libraries
    # of another environment, which site does not list.
    if INSTALLED_IN & {*path.parts}:
        return False
    return not any(folder in path.parents for folder in (*_library_folders(), PACKAGE))


def _file_of(module: ModuleType | None) -> Path | None:
    path = getattr(module, "__file__", None)
    return Path(path).resolve() if path and path.endswith(".py") else None


@cache
def _names_in(source: bytes, package: str) -> tuple[str, ...]:
    """Names in import statements that are or may be modules: `from a import b` gives a and a.b."""
    # A helper that is imported lazily, or written for another version of Python, may not parse.
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):
        return ()
    imported = [name for node in nodes for name in _names_of(node, package)]
    # Importing a.b.c also runs the __init__.py of a and of a.b.
    parents = [
        name.rsplit(".", count)[0] for name in imported for count in range(name.count("."), 0, -1)
    ]
    return tuple(dict.fromkeys([*parents, *imported]))


def _names_of(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or (node.level and not package):
        return []
    base = "." * node.level + (node.module or "")
    if node.level:
        try:
            base = importlib.util.resolve_name(base, package)
        # The import goes beyond the top of the package. Python reports that when the code runs.
        except ImportError:
            return []
    return [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]


def _find_module(name: str) -> Path | None:
    """File of the module, without importing it; None without a Python file."""
    if name in sys.modules:
        return _file_of(sys.modules[name])
    # find_spec("a.b") imports a, which may be slow or have side effects: the file is looked up in
    # the folder of the package instead.
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        package = _find_module(parent)
        if package is None or not is_own(package) or package.name != "__init__.py":
            return None
        return _submodule(package.parent, last)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        return None
    return Path(str(spec.origin)).resolve()


def _submodule(folder: Path, name: str) -> Path | None:
    paths = folder / f"{name}.py", folder / name / "__init__.py"
    return next((path for path in paths if path.is_file()), None)


@cache
def _library_folders() -> tuple[Path, ...]:
    """Folders of Python's library and of installed packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()]
    return tuple({Path(folder).resolve() for folder in folders})
