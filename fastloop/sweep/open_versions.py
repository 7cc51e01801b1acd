"""Open the two versions that `fastloop check against=` compares, so that processes can run them.

The base is the version that `against=` names, and the new version is the present one. A commit is
checked out, and a package is installed in an environment of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from fastloop.core.installed_folders import INSTALLED_IN
from fastloop.core.optional_libraries import version_of
from fastloop.core.types import Unsupported, UsageError
from fastloop.processes.environments import (
    BuiltEnvironment,
    Environment,
    build_environment,
    package_in,
)
from fastloop.processes.git_worktree import check_out, find_repository, remove_left_worktrees
from fastloop.sweep.version_process import BASE, NEW, Version
from fastloop.sweep.version_source import (
    FASTLOOP,
    NATIVE_SOURCES,
    VersionSource,
    find_requirement,
)

_PREFIXES = {sys.prefix, sys.base_prefix}
"""Folders of this environment, and of the Python from which the environment was made."""


@contextmanager
def open_versions(source: VersionSource, here: Path, folder: Path) -> Iterator[dict[str, Version]]:
    """Open both versions, by BASE and NEW: the version that `against=` names, and the present one.

    here: the working folder. folder: a folder below the outputs folder, in which git makes the
    worktree of a commit; the worktree is removed at the end. Raises UsageError if the version can't
    be made.
    """
    repository = find_repository(here)
    if repository:
        remove_left_worktrees(repository, folder.parent)
    if source.kind != "commit":
        yield _versions(source, here, here, Path(source.against).absolute())
        return
    # find_source has found the commit in this repository.
    assert repository is not None
    with check_out(repository, source.commit, folder) as worktree:
        tree = worktree / here.resolve().relative_to(repository)
        if not tree.is_dir():
            raise UsageError(f"against={source.against}: this commit has no folder {here.name}")
        yield _versions(source, here, repository, worktree)


def _versions(source: VersionSource, here: Path, top: Path, tree: Path) -> dict[str, Version]:
    """Both versions, by BASE and NEW.

    top: the folder that holds the user's code. tree: the folder that replaces `top` in the base or,
    for versions of a package, the wheel or the folder of the package.
    """
    if source.package:
        # The version's environment itself adds the folders of the main environment's .pth files,
        # after its own packages. They are not passed on, because they would then come first and
        # hide these packages.
        return _package_versions(source, _import_path(here, ()), tree)
    return _code_versions(source, _import_path(here, sys.path), top.resolve(), tree.resolve())


def _package_versions(
    source: VersionSource, path: tuple[str, ...], tree: Path
) -> dict[str, Version]:
    """Versions of a package: the user's code is the same in both.

    If the jobs require an environment, the new version runs in it as it is, and the base in an
    environment that differs only in the version of the package.
    """
    package, needed = source.package, source.environment
    if needed is None:
        new = Version(label=f"{package} {version_of(package)}", path=path)
    else:
        built = _build(needed, f"package={package}")
        new = _version_in(built, package, path)
        installed = new.package_version or version_of(package)
        if not installed:
            label = ", ".join(built.packages)
            raise UsageError(
                f"package={package}: it is not installed; allowed: a package that is, such as "
                f"those of the job's environment: {label}"
            )
        new = replace(new, label=f"{package} {installed}")
    return {BASE: _build_package(source, path, tree), NEW: new}


def _code_versions(
    source: VersionSource, path: tuple[str, ...], top: Path, tree: Path
) -> dict[str, Version]:
    """Versions of the user's code: the installed packages are the same in both.

    path: the import path of the new version. top, tree: as for `_versions`.
    """
    _copy_native_parts(source, top, tree)
    # Each folder of the path in `top` is replaced by the same folder in `tree`. An editable
    # installation may have added such folders, too.
    own = [each for each in path if Path(each).is_relative_to(top)]
    moved = [str(tree / Path(each).relative_to(top)) for each in own]
    base = Version(
        label=source.label,
        path=(*dict.fromkeys([*moved, *(each for each in path if each not in own)]),),
        tree=str(tree),
        forbidden_folder=str(top),
    )
    return {BASE: base, NEW: Version(label="the working folder", path=path)}


def _import_path(here: Path, others: Sequence[str]) -> tuple[str, ...]:
    """The working folder, the folders of PYTHONPATH, and the folders `others`.

    Folders of Python itself and of installed packages are left out.
    """
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    own = [each for each in others if each and Path(each).is_dir()]
    folders = [Path(each).resolve() for each in [here, *given, *own]]
    return (*dict.fromkeys(str(each) for each in folders if not _is_of_python(each)),)


def _is_of_python(folder: Path) -> bool:
    """True for a folder of the standard library or of installed packages."""
    is_standard = any(folder.is_relative_to(Path(each).resolve() / "lib") for each in _PREFIXES)
    return is_standard or bool(INSTALLED_IN & {*folder.parts})


def _build_package(source: VersionSource, path: Sequence[str], tree: Path) -> Version:
    """Build the version of a package that `against=` names, in an environment of its own.

    path: the import path of the user's code. tree: the wheel or the folder of the package.
    """
    is_own = canonicalize_name(source.package) == FASTLOOP
    required = source.environment.requirements if source.environment else ()
    if source.kind == "version":
        environment = Environment(requirements=pin(required, source.package, source.against))
    elif is_own:
        environment = Environment(requirements=required, fastloop=tree)
    else:
        # Without these options, pip would skip a wheel of the version that is installed already.
        place = f"--no-deps --force-reinstall {shlex.quote(str(tree))}"
        environment = Environment(requirements=(*required, place))
    built = _build(environment, f"against={source.against}")
    if is_own:
        path = [each for each in path if not (Path(each) / FASTLOOP / "__init__.py").exists()]
    return replace(_version_in(built, source.package, path), label=source.label)


def pin(requirements: Sequence[str], package: str, number: str) -> tuple[str, ...]:
    """The requirements, with this version of the package in place of any other.

    >>> pin(("numba", "--no-deps ffcv>=1"), "ffcv", "1.0.2")
    ('numba', '--no-deps ffcv==1.0.2')
    """
    old = find_requirement(requirements, package)
    found = package_in(old) if old else None
    extras = f"[{','.join(sorted(found.extras))}]" if found and found.extras else ""
    new = f"{package}{extras}=={number}"
    if not old:
        return (*requirements, new)
    if old.startswith("-"):
        new = shlex.join([*shlex.split(old)[:-1], new])
    return (*(new if each == old else each for each in requirements),)


def _build(environment: Environment, setting: str) -> BuiltEnvironment:
    """Build the environment; raises UsageError, with the setting, if that fails."""
    try:
        return build_environment(environment)
    except Unsupported as error:
        raise UsageError(f"{setting}: {error}") from None


def _version_in(built: BuiltEnvironment, package: str, path: Sequence[str]) -> Version:
    """The version of the package that the environment has."""
    names = {canonicalize_name(name): number for name, number in built.packages.items()}
    return Version(
        label=built.label,
        python=str(built.folder / "bin" / "python"),
        path=tuple(path),
        package=package,
        package_version=names.get(canonicalize_name(package), ""),
    )


def _copy_native_parts(source: VersionSource, top: Path, tree: Path) -> None:
    """If `tree` is a commit of fastloop, copy the compiled parts of the working folder into it.

    Without compiled parts the commit would be measured slower than it is. Raises UsageError if the
    sources of the parts differ between the working folder and the commit.
    """
    parts = [*(top / NATIVE_SOURCES.parent).glob("*.so")]
    if not parts or not (tree / NATIVE_SOURCES).is_dir() or source.kind != "commit":
        return
    if _texts(top / NATIVE_SOURCES) != _texts(tree / NATIVE_SOURCES):
        remedy = f"package={FASTLOOP} against={source.against} compiles them"
        raise UsageError(f"against={source.against}: the native parts differ: {remedy}")
    for part in parts:
        shutil.copy(part, tree / NATIVE_SOURCES.parent / part.name)


def _texts(folder: Path) -> dict[str, bytes]:
    """Path below the folder -> content, for all C sources and headers."""
    files = [each for each in sorted(folder.rglob("*")) if each.suffix in (".c", ".h")]
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}
