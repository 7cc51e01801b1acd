"""Find and build the version that `against=` names: a commit, a number, a wheel or a folder.

`fastloop check against=` compares this version, the base, with the present version. Both are
versions of the user's own modules, or of an installed package.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion
from packaging.version import Version as PackageVersion

from fastloop.core.installed_folders import INSTALLED_IN
from fastloop.core.optional_libraries import version_of
from fastloop.core.types import Unsupported, UsageError
from fastloop.processes.environments import (
    BuiltEnvironment,
    Environment,
    build_environment,
    environment_for,
    package_in,
)
from fastloop.processes.git_worktree import (
    check_out,
    explain_no_repository,
    find_commit,
    find_repository,
    remove_left_worktrees,
)
from fastloop.sweep.version_process import BASE, NEW, Version

FASTLOOP = "fastloop"
PACKAGE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""The form of the name of a package."""
ALLOWED = (
    "a commit, tag or branch of this repository, a wheel, a folder, or with package=<name> a "
    "version such as 1.0.1"
)
"""The allowed values of `against=`, for messages."""
NATIVE_SOURCES = Path("fastloop/fastloader/native")
"""Folder of the sources of fastloop's native parts, in a checkout of fastloop."""
Kind = Literal["commit", "version", "wheel", "folder"]
"""The kind of a value of `against=`; "version" is the number of a package's version."""


@dataclass(frozen=True, kw_only=True)
class VersionSource:
    """A version that `against=` names."""

    kind: Kind
    against: str
    """The value of `against=`."""
    package: str = ""
    """The package of which this is a version; empty: it is a version of the user's own modules."""
    commit: str = ""
    """The hash of the commit; empty for other kinds."""
    environment: Environment | None = None
    """The environment that the jobs require; None: this process can import all that the jobs
    require."""

    @property
    def label(self) -> str:
        """The name in messages."""
        # The name of a wheel begins with that of its package.
        if self.kind == "wheel":
            return Path(self.against).name
        name = f"{self.against} ({self.commit[:8]})" if self.commit else self.against
        return f"{self.package} {name}".strip()


def find_source(against: str, package: str, here: Path) -> VersionSource:
    """Find the version that `against=` names; nothing is built or checked out yet.

    package: the package of the version; empty: the version is one of the user's modules. here: the
    working folder. Raises UsageError, with the allowed values, if there is no such version.

    >>> find_source("1.0.1", "webdataset", Path()).kind
    'version'
    """
    if package and not PACKAGE_NAME.fullmatch(package):
        raise UsageError(f"package={package}: allowed: the name of an installed package")
    path = _path_of(against)
    if against.endswith(".whl"):
        return _find_wheel(path, package)
    is_path = against.startswith((".", "/", "~"))
    if package and not is_path and _is_version(against):
        return VersionSource(kind="version", against=against, package=package)
    # `find_repository` does not find a bare repository, which has no working folder to compare with
    # its commits.
    repository = None if is_path else find_repository(here)
    if repository and (commit := find_commit(here, against)):
        return VersionSource(kind="commit", against=against, package=package, commit=commit)
    if _is_folder(path):
        return VersionSource(kind="folder", against=str(path), package=package)
    # In a checkout of fastloop a number is a version of fastloop. Anywhere else the number is more
    # likely a mistyped tag, and is refused: otherwise another fastloop would be installed and
    # compared in silence.
    is_number = _is_version(against)
    if is_number and repository and (repository / NATIVE_SOURCES).is_dir():
        return VersionSource(kind="version", against=against, package=FASTLOOP)
    hint = f"; package={FASTLOOP} against={against} is a version of fastloop" if is_number else ""
    if repository:
        hint += "; CI checks out one commit only, and the others with fetch-depth: 0"
    elif not is_path and (reason := explain_no_repository(here)):
        hint += f"; no commit was looked for: {reason}"
    raise UsageError(f"against={against}: no such commit, file or folder; allowed: {ALLOWED}{hint}")


def with_requirements(source: VersionSource, requirements: Sequence[str]) -> VersionSource:
    """The version of a package, with the environment that jobs with these requirements need.

    Raises UsageError if neither this process nor the environment of the jobs has the package.
    """
    needed = environment_for(requirements)
    package = source.package
    if needed is None:
        if version_of(package) is None:
            hint = "allowed: a package that is, or that the options of the job require"
            raise UsageError(f"package={package}: it is not installed; {hint}")
        return source
    # An environment that is not built yet may still get the package as a dependency. But building
    # takes minutes, and a mistyped name should be reported at once, so the package is refused.
    is_known = version_of(package) or needed.is_built or _find_in(requirements, package)
    if not is_known:
        raise UsageError(
            f"package={package}: it is not installed, and the job requires "
            f"{', '.join(requirements)}; allowed: a package that is, or that the job requires"
        )
    return replace(source, environment=needed)


def _find_in(requirements: Sequence[str], package: str) -> str:
    """The requirement that names the package; empty if there is none."""
    for each in requirements:
        found = package_in(each)
        if found and canonicalize_name(found.name) == canonicalize_name(package):
            return each
    return ""


def _path_of(text: str) -> Path:
    """The path, with the user's home folder in place of ~."""
    # expanduser() fails for ~name if there is no such user.
    with suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def _is_folder(path: Path) -> bool:
    """True for a folder; False also if the system can't look for the path."""
    # A name may be too long for the file system.
    with suppress(OSError):
        return path.is_dir()
    return False


def _find_wheel(path: Path, package: str) -> VersionSource:
    """Find the wheel at the path; raises UsageError if it is not a wheel of the package."""
    if not path.is_file():
        raise UsageError(f"against={path}: no such file; allowed: {ALLOWED}")
    try:
        name = parse_wheel_filename(path.name)[0]
    except InvalidWheelFilename:
        raise UsageError(
            f"against={path}: allowed: the name that the wheel was built with"
        ) from None
    if package and canonicalize_name(package) != name:
        raise UsageError(f"package={package} against={path}: this is a wheel of {name}")
    return VersionSource(kind="wheel", against=str(path), package=package or name)


def _is_version(text: str) -> bool:
    """True if the text is a version number of a package."""
    try:
        PackageVersion(text)
    except InvalidVersion:
        return False
    return True


@contextmanager
def open_versions(source: VersionSource, here: Path, folder: Path) -> Iterator[dict[str, Version]]:
    """Open both versions, by BASE and NEW: the version that `against=` names, and the present one.

    here: the working folder. folder: a path below the outputs folder for git's worktree of a
    commit, which is removed at the end. Raises UsageError if the version can't be made.
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

    top: the folder that holds the user's code. tree: the folder that replaces `top` in the base.
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
    _keep_native_parts(source, top, tree)
    # Each folder of the path below `top` is replaced by the same folder below `tree`, including
    # those that an editable installation has added.
    moved = [str(tree / Path(each).relative_to(top)) for each in path if _is_below(each, top)]
    base = Version(
        label=source.label,
        path=(*dict.fromkeys([*moved, *(each for each in path if not _is_below(each, top))]),),
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


_PREFIXES = {sys.prefix, sys.base_prefix}
"""Folders of this environment, and of the Python from which the environment was made."""


def _is_below(folder: str, top: Path) -> bool:
    """True for `top` itself and for all folders inside it."""
    return Path(folder).is_relative_to(top)


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
    old = _find_in(requirements, package)
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


def _keep_native_parts(source: VersionSource, top: Path, tree: Path) -> None:
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
