"""Find the version that `against=` names: a commit, a number, a wheel or a folder.

`fastloop check against=` compares this version with the present one. Both are versions of the
user's own modules, or of an installed package. fastloop/sweep/open_versions.py builds them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion
from packaging.version import Version as PackageVersion

from fastloop.core.optional_libraries import version_of
from fastloop.core.types import UsageError
from fastloop.processes.environments import Environment, environment_for, package_in
from fastloop.processes.git_worktree import explain_no_repository, find_commit, find_repository

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
    require, or this is a version of the user's own modules."""

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
    hints = [f"package={FASTLOOP} against={against} is a version of fastloop"] if is_number else []
    if repository:
        hints.append("CI checks out one commit only, and the others with fetch-depth: 0")
    elif not is_path and (reason := explain_no_repository(here)):
        hints.append(f"no commit was looked for: {reason}")
    allowed = "; ".join([f"allowed: {ALLOWED}", *hints])
    raise UsageError(f"against={against}: no such commit, file or folder; {allowed}")


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
    is_known = version_of(package) or needed.is_built or find_requirement(requirements, package)
    if not is_known:
        raise UsageError(
            f"package={package}: it is not installed, and the job requires "
            f"{', '.join(requirements)}; allowed: a package that is, or that the job requires"
        )
    return replace(source, environment=needed)


def find_requirement(requirements: Sequence[str], package: str) -> str:
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
