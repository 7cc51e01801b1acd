"""Build virtual environments for options with libraries that conflict with the main environment.

The main environment is the one that fastloop is started from. A built environment also sees its
packages: a .pth file in its site-packages adds the main environment's folders after its own. So
torch, which takes gigabytes, is installed only once, and a requirement still takes precedence over
another version in the main environment. A virtual environment with --system-site-packages would not
do. It shows the packages of the base interpreter, which has none if the main environment is itself
a virtual environment.

pip installs the requirements. It treats the packages that it sees as installed, and does not
uninstall those outside of the environment. uv ignores all packages outside of the environment, and
so would install torch again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import site
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires
from itertools import pairwise
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pydantic
from packaging.requirements import InvalidRequirement, Requirement

from fastloop.core.atomic_files import hold_lock, remove, write_beside
from fastloop.core.fingerprints import fingerprint
from fastloop.core.optional_libraries import version_of
from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.text import encodable
from fastloop.core.types import Failure, FailureKind, JobFailed, Unsupported
from fastloop.processes.parent_death import die_with_parent
from fastloop.processes.pip_reason import find_reason

BUILD_FORMAT = 1
"""Version of the way in which environments are built. A higher one leaves older environments
unused."""
DESCRIPTION = "environment.json"
"""Name of the file that describes an environment in its folder; written after the installation."""
SAME_MODULES = {"tensorflow-cpu": "tensorflow", "opencv-python-headless": "opencv-python"}
"""Name of a package -> another package that has the same modules and versions."""
COMPILED_FOR = ("torch", "numpy")
"""Packages of the main environment for which compiled requirements are built."""
WHEEL_SOURCES = ("fastloop", "conf", "experiments", "pyproject.toml", "hatch_build.py")
"""The parts of a folder of fastloop that its wheel is built from."""
PIP_OPTIONS = ("--no-input", "--no-warn-script-location", "--disable-pip-version-check")
"""Options with which pip asks nothing and leaves out warnings that do not matter here."""
PLACE_VARIABLES = tuple(f"PIP_{name}" for name in ("DRY_RUN", "PREFIX", "PYTHON", "ROOT", "TARGET"))
"""Environment variables with which pip would install to another place, or nothing."""
NAME_FILES = ("-r", "--requirement", "-c", "--constraint")
"""Options of pip install that the path of a file follows."""
DESCRIBING_PROGRAM = """
import importlib.metadata, json, sys, sysconfig
folders = sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})
packages = {each.name: each.version for each in importlib.metadata.distributions(path=folders)}
print(json.dumps({"path": sys.path, "packages": packages}))
"""
"""Program that prints an interpreter's import path, and the packages of its own environment."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The contents of a virtual environment, which `build_environment` makes.

    requirements: arguments of pip install, such as `webdataset==0.2.100` or the path of a wheel.
    A requirement that begins with options, such as `--no-deps ffcv`, is installed after the others
    by a call of its own. fastloop: a wheel or a checkout of fastloop that the environment has
    instead of the main one's; its dependencies are not installed.
    """

    requirements: tuple[str, ...] = ()
    fastloop: Path | None = None

    @property
    def key(self) -> str:
        """A hash of the requirements, of their content if they are files or folders, and of the
        Python and the libraries on which the environment is built."""
        files = [_digest(path) for path in _local_files(self)]
        compiled_for = [(name, version_of(name)) for name in COMPILED_FOR]
        requirements = sorted(self.requirements)
        # The path is resolved, because a symbolic link may lead to the same virtual environment.
        # The interpreter's real path would not identify it: that is the base interpreter's.
        prefix = os.path.realpath(sys.prefix)
        return fingerprint(BUILD_FORMAT, sys.version, prefix, requirements, files, compiled_for)

    @property
    def folder(self) -> Path:
        """The environment's folder, below environments/ in the outputs folder."""
        return environments_folder() / self.key

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_built(self) -> bool:
        """True if the environment exists, its description can be read, and it has not been moved
        since it was built."""
        try:
            path = read_environment(self.folder).path
        except Unsupported:
            return False
        # Its import path and its scripts name the folder in which it was built.
        own = [Path(each) for each in path if self.key in Path(each).parts]
        return bool(own) and all(each.exists() for each in own)


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The content of an environment's DESCRIPTION."""

    requirements: tuple[str, ...]
    fastloop: str | None
    path: tuple[str, ...]
    packages: dict[str, Any]


_DESCRIPTION = pydantic.TypeAdapter(_Description)


@dataclass(frozen=True, kw_only=True)
class BuiltEnvironment:
    """An environment that exists, as its folder describes it."""

    folder: Path
    environment: Environment
    path: tuple[str, ...]
    """Folders that its interpreter imports from, the main environment's last."""
    packages: dict[str, str]
    """Names and versions of the packages that were installed in it."""

    @property
    def label(self) -> str:
        """Text for a list: the requirements, and the path of the environment's own fastloop."""
        made_of = self.environment
        own = [f"fastloop of {made_of.fastloop}"] if made_of.fastloop else []
        return ", ".join([*made_of.requirements, *own])


def environments_folder() -> Path:
    """The folder of all environments, in the outputs folder."""
    return outputs_folder() / "environments"


def build_environment(environment: Environment) -> BuiltEnvironment:
    """Build the environment if it does not exist, and return it.

    A build that fails or is interrupted leaves nothing. Raises Unsupported with the reason.

    >>> build_environment(Environment(requirements=("webdataset==0.2.100",))).packages
    {'webdataset': '0.2.100', 'braceexpand': '0.1.7'}
    """
    return find_or_build(environment)[0]


def find_or_build(environment: Environment) -> tuple[BuiltEnvironment, bool]:
    """Return the environment as `build_environment` does, and True if this call has built it.

    Waits, and prints a line about it, while another process builds an environment.
    """
    # If the environment exists, nothing is waited for, even while another one is being built.
    if environment.is_built:
        return read_environment(environment.folder), False
    _check_contents(environment)
    folder = environment.folder
    # All environments share one lock, because concurrent pip calls would disturb each other, and a
    # failed build would leave a lock of its own behind.
    try:
        with hold_lock(environments_folder(), _report_wait):
            remove_unfinished()
            # The process that was waited for may have built it.
            is_new = not environment.is_built
            if is_new:
                try:
                    with write_beside(folder) as beside:
                        _build(environment, beside, folder)
                finally:
                    # rmdir fails if there are other environments.
                    with suppress(OSError):
                        environments_folder().rmdir()
            return read_environment(folder), is_new
    # The disk may be full, or the outputs folder read-only: the job's row then shows the reason.
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unsupported(f"no environment: {error.filename or folder}: {reason}") from error


def _report_wait() -> None:
    print(
        "another fastloop creates an environment: waiting for its end", file=sys.stderr, flush=True
    )


def _check_contents(environment: Environment) -> None:
    """Raise Unsupported for a file that does not exist, or text that UTF-8 can't encode."""
    for path in _local_files(environment):
        if not path.exists():
            raise Unsupported(f"no environment: {path}: no such file or folder")
    for text in (*environment.requirements, str(environment.folder), sys.prefix):
        if encodable(text) != text:
            raise Unsupported(f"no environment: {encodable(text)}: allowed: text in UTF-8")


def read_environment(folder: Path) -> BuiltEnvironment:
    """Read the environment in that folder. Raises Unsupported if the folder holds none, or if the
    description of it is damaged."""
    path = folder / DESCRIPTION
    try:
        values = _DESCRIPTION.validate_json(path.read_bytes())
    except OSError as error:
        raise Unsupported(f"no environment in {folder}: {error.strerror}") from error
    except pydantic.ValidationError as error:
        remedy = "fastloop env with the command line of the run builds the environment again"
        raise Unsupported(f"{path}: damaged, it is not as fastloop wrote it: {remedy}") from error
    made_of = Environment(
        requirements=values.requirements,
        fastloop=Path(values.fastloop) if values.fastloop else None,
    )
    return BuiltEnvironment(
        folder=folder, environment=made_of, path=values.path, packages=values.packages
    )


def list_environments() -> tuple[list[BuiltEnvironment], list[str]]:
    """All environments in the outputs folder, sorted by name, and a line for each damaged
    description."""
    found: list[BuiltEnvironment] = []
    damaged: list[str] = []
    for path in sorted(environments_folder().glob(f"*/{DESCRIPTION}")):
        try:
            found.append(read_environment(path.parent))
        except Unsupported as error:
            damaged.append(str(error))
    return found, damaged


def remove_unfinished() -> None:
    """Remove the remains of killed builds. The caller must hold the lock of all environments."""
    for path in environments_folder().glob(".*.partial"):
        remove(path)


def environment_for(requirements: Sequence[str]) -> Environment | None:
    """The environment for these requirements; None if this process can import them already, or runs
    in a built environment itself."""
    missing = not all(_is_satisfied(requirement) for requirement in requirements)
    return Environment(requirements=tuple(requirements)) if missing and not is_inside() else None


def is_inside() -> bool:
    """True if this process runs in an environment that `build_environment` has made."""
    return (Path(sys.prefix) / DESCRIPTION).is_file()


@contextmanager
def spawn_from(folder: Path) -> Iterator[None]:
    """Inside the context, multiprocessing's start method spawn starts the interpreter of the
    environment in this folder, with its import path. Raises JobFailed if there is no environment.

    On that path, the folders from which the program itself imports come first, as in every child.
    """
    try:
        built = read_environment(folder)
    except Unsupported as error:
        failure = Failure(kind=FailureKind.UNSUPPORTED, message=str(error))
        raise JobFailed(failure) from error
    # A spawned process gets the import path of its parent, not that of its own interpreter.
    path = [each for each in sys.path if each not in built.path]
    own = list(built.path)
    if built.environment.fastloop is not None:
        path = [each for each in path if not (Path(each) / "fastloop/__init__.py").exists()]
    before = sys.path, spawn.get_executable()
    spawn.set_executable(str(folder / "bin" / "python"))
    sys.path = [*path, *own]
    try:
        yield
    finally:
        sys.path = before[0]
        spawn.set_executable(before[1])


def _build(environment: Environment, beside: Path, folder: Path) -> None:
    """Build the environment in the folder `beside`, which is then renamed to `folder`."""
    venv.create(beside, symlinks=True, with_pip=False)
    python, (own,) = beside / "bin" / "python", beside.glob("lib/python*/site-packages")
    # pip's temporary files are in the folder, so they are removed with an interrupted build.
    temporary = beside / "tmp"
    temporary.mkdir()
    # addsitedir also reads the .pth files of the main environment, such as those of editable
    # installations. Python reads .pth files in the order of their names: this name is the last one.
    # Python reads them in the encoding of the locale or as UTF-8, so they are ASCII.
    lines = [f"import site; site.addsitedir({each!a})" for each in _main_packages()]
    content = "".join(f"{line}\n" for line in lines)
    (own / "zz_main_environment.pth").write_text(content, encoding="ascii")
    if _run([str(python), "-I", "-c", "import pip"], temporary).returncode:
        _check([str(python), "-I", "-m", "ensurepip"], temporary)
    for arguments in _pip_calls(environment):
        # With PIP_USER=1, or `user = true` in a pip.conf, pip refuses to install to an environment.
        command = [str(python), "-I", "-m", "pip", "install", "--no-user", *PIP_OPTIONS, *arguments]
        _check(command, temporary)
    described = json.loads(_check([str(python), "-I", "-c", DESCRIBING_PROGRAM], temporary))
    described["path"] = [each.replace(str(beside), str(folder)) for each in described["path"]]
    text = json.dumps(asdict(environment) | described, default=str, ensure_ascii=False)
    (beside / DESCRIPTION).write_text(text, encoding="utf-8")
    _move_scripts(beside, folder)
    remove(temporary)


def _pip_calls(environment: Environment) -> list[list[str]]:
    """Arguments of each call of pip install that the environment needs."""
    plain = [each for each in environment.requirements if not each.startswith("-")]
    with_options = [each for each in environment.requirements if each.startswith("-")]
    calls = [plain] if plain else []
    calls += map(_words_of, with_options)
    if environment.fastloop is not None:
        # pip would leave out a wheel of the version that the main environment has.
        calls.append(["--no-deps", "--ignore-installed", str(environment.fastloop)])
    return calls


def _move_scripts(beside: Path, folder: Path) -> None:
    """Replace the temporary folder's name in the scripts of a new environment by its final one."""
    for path in (beside / "bin").iterdir():
        # pip compiles a script that is a module, into bin/__pycache__.
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            path.write_bytes(content.replace(beside.name.encode(), folder.name.encode()))


def _check(command: list[str], temporary: Path) -> str:
    """Run a command, and return its output; raises Unsupported with the line of its output that
    says why it has failed."""
    done = _run(command, temporary)
    if done.returncode:
        raise Unsupported(f"no environment: {find_reason(done.stderr + done.stdout)}")
    return done.stdout


def _run(command: list[str], temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that writes its temporary files to that folder."""
    variables = {name: value for name, value in os.environ.items() if name not in PLACE_VARIABLES}
    process = subprocess.Popen(
        command,
        env=variables | {"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # If this command is killed, pip ends with it; otherwise it would go on writing.
        preexec_fn=die_with_parent,  # noqa: PLW1509 - of Python's own code it runs one function
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        # pip starts compilers, and ensurepip starts pip: all of these are in the session.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # The pipes close once the last of them has ended: nothing writes to the folder any more.
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _main_packages() -> list[str]:
    """Folders with the packages of this process's environment, in the order of import."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [each for each in [*user, *site.getsitepackages()] if Path(each).is_dir()]


def _local_files(environment: Environment) -> list[Path]:
    """Files and folders that the requirements name, and the environment's own fastloop."""
    is_path = re.compile(r"(?!-)(?!.*://).*(/|\.whl$|\.tar\.gz$)")
    paths = [
        Path(word)
        for each in environment.requirements
        for before, word in pairwise(["", *_words_of(each)])
        if before in NAME_FILES or is_path.match(word)
    ]
    return [*paths, *([environment.fastloop] if environment.fastloop else [])]


def _words_of(requirement: str) -> list[str]:
    """The arguments of pip for a requirement: several if it begins with options, else one."""
    return shlex.split(requirement) if requirement.startswith("-") else [requirement]


def _digest(path: Path) -> str:
    """A hash of a file, or of the files of a folder that a wheel is built from."""
    if path.is_file():
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    names = [name for name in WHEEL_SOURCES if (path / name).exists()]
    tops = [path / name for name in names] if "fastloop" in names else [path]
    files = [each for top in tops for each in [top, *top.rglob("*")] if _is_source(each, path)]
    digests = [(str(file.relative_to(path)), _digest(file)) for file in sorted(files)]
    return fingerprint(*digests)


def _is_source(file: Path, folder: Path) -> bool:
    """True for a file below the folder that is neither hidden nor compiled."""
    parts = file.relative_to(folder).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return file.is_file() and not hidden and file.suffix != ".so"


def package_in(requirement: str) -> Requirement | None:
    """The package that a requirement names; None if the requirement is a path.

    >>> package_in("--no-deps ffcv>=1")
    <Requirement('ffcv>=1')>
    """
    try:
        # If options come with a requirement, they come before it.
        return Requirement(_words_of(requirement)[-1])
    except InvalidRequirement:
        return None


def _is_satisfied(requirement: str) -> bool:
    """True if this process's environment has the required package, with its extras, in an allowed
    version, or if the requirement's marker excludes this environment."""
    if (needed := package_in(requirement)) is None:
        return False
    if needed.marker is not None and not needed.marker.evaluate():
        return True
    same = SAME_MODULES.get(needed.name, needed.name)
    found = version_of(needed.name) or version_of(same)
    if found is None or needed.url is not None or not needed.specifier.contains(found, True):
        return False
    of_extras = (each for extra in needed.extras for each in _of_extra(needed.name, extra))
    return all(map(_is_satisfied, of_extras))


def _of_extra(package: str, extra: str) -> list[str]:
    """The requirements that an extra, as in `fsspec[s3]`, adds to those of an installed package."""
    added = []
    with suppress(PackageNotFoundError):
        for each in map(Requirement, requires(package) or []):
            marker, each.marker = each.marker, None
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                added.append(str(each))
    return added
