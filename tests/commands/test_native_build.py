"""The native core is built with the package where there is a compiler, and chosen by variables."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from options import REPOSITORY
from wheels import build, copy_sources

from fastloop.fastloader import has_core, has_jpeg

pytestmark = pytest.mark.heavy
COMPILER = shlex.split(os.environ.get("CC") or "cc")
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER[0]) is None
    or subprocess.run([*COMPILER, "--version"], check=False, capture_output=True).returncode != 0,
    reason="no C compiler",
)
VERSIONS = ("3.11", "3.12", "3.13")
GATHER = """
import array, importlib.util, sys
spec = importlib.util.spec_from_file_location("_core", sys.argv[1])
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
rows = array.array("q", range(100))
bytes_alone = (0, 0), (0, 0, 0, 0, 0), b"", b""
column = core.Column(rows, 100, 8, (8, 8), 0, 0, 0, *bytes_alone, (0, 64), (), ())
out = array.array("q", [0] * 3)
core.gather_into((column,), array.array("q", [5, 99, 0]), (out,), 2)
calls = id, id, bool, None, None, int
references = sys.getrefcount(None)
for _ in range(99):
    core.gather_into((column,), array.array("q", [5, 99, 0]), (out,), 2)
assert sys.getrefcount(None) > references - 9, "None is freed"
count = array.array("q", [0])
stream = core.Stream(
    (column,), core.Order(1, 100), core.Pool(9), calls, count, 0, 7, False, 2, 99, 3
)
print(sys.version_info[:2], out.tolist(), len(list(stream)), count[0])
"""


@needs_compiler
def test_one_wheel_has_a_core_for_every_python(tmp_path, wheel):
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    binaries = [name for name in names if name.startswith("fastloop/fastloader/_core")]
    assert binaries == ["fastloop/fastloader/_core.abi3.so"]
    assert ("fastloop/fastloader/_jpeg.abi3.so" in names) == has_jpeg()
    assert [name for name in names if name.startswith("fastloop/fastloader/native/")] == []
    core = zipfile.ZipFile(wheel).extract("fastloop/fastloader/_core.abi3.so", tmp_path)
    ran = {name: gather(python, core) for name, python in pythons().items()}
    assert ran == {name: printed_by(name) for name in ran}


@needs_compiler
@pytest.mark.parametrize("built_by", VERSIONS)
def test_core_that_headers_of_one_python_made_serves_every_python(tmp_path, built_by):
    found = pythons()
    if built_by not in found:
        pytest.skip(f"no python{built_by}")
    code = "import sysconfig; print(sysconfig.get_paths()['include'])"
    command = [found[built_by], "-c", code]
    include = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(include, "Python.h").exists():
        pytest.skip(f"no headers of python{built_by}")
    native = REPOSITORY / "fastloop" / "fastloader" / "native"
    sources = [*native.glob("*.c"), *native.glob("bindings/*.c")]
    flags = ["-std=c11", "-O1", "-shared", "-fPIC", "-pthread", f"-I{include}"]
    core = tmp_path / "_core.abi3.so"
    subprocess.run([*COMPILER, *flags, *map(str, sources), "-o", str(core)], check=True)
    assert {name: gather(python, str(core)) for name, python in found.items()} == {
        name: printed_by(name) for name in found
    }


def test_collector_frees_a_core_that_nobody_uses():
    core = has_core() and find_spec("fastloop.fastloader._core")
    if not core:
        pytest.skip("the native core is not built")
    code = (
        "import gc, importlib.util, sys, weakref\n"
        "spec = importlib.util.spec_from_file_location('_core', sys.argv[1])\n"
        "core = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(core)\n"
        "names = 'Column', 'Order', 'Pool', 'Stream'\n"
        "kinds = [weakref.ref(getattr(core, name)) for name in names]\n"
        "del core\n"
        "gc.collect()\n"
        "print([kind() for kind in kinds])\n"
    )
    command = [sys.executable, "-c", code, str(core.origin)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.stdout == "[None, None, None, None]\n", process.stderr


def pythons() -> dict[str, str]:
    """Interpreters on the path by their version, this one's among them."""
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {this: sys.executable}
    for version in VERSIONS:
        python = shutil.which(f"python{version}")
        if version != this and python and _runs(python):
            found[version] = python
    return found


def _runs(python: str) -> bool:
    return subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0


def gather(python: str, core: str) -> str:
    """What an interpreter prints that gathers rows by the core."""
    command = [python, "-c", GATHER, core]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout + process.stderr


def printed_by(version: str) -> str:
    return f"(3, {version[2:]}) [5, 99, 0] 15 15\n"


def test_without_a_compiler_the_wheel_is_pure_and_says_so(tmp_path):
    source = copy_sources(tmp_path)
    in_use = source / "fastloop" / "fastloader" / "_core.abi3.so"
    in_use.write_bytes(b"of an editable install")
    process = build(source, tmp_path, "--wheel", CC="no-such-compiler")
    assert process.returncode == 0, process.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert in_use.read_bytes() == b"of an editable install"
    assert "FastLoader's native core is left out" in process.stdout + process.stderr
    process = build(source, tmp_path, "--wheel", CC="no-such-compiler", FASTLOOP_NATIVE="1")
    assert process.returncode != 0
    assert "FASTLOOP_NATIVE=1, but the core did not build" in process.stdout + process.stderr


@pytest.mark.nightly
@needs_compiler
def test_wheel_has_a_core_of_its_own(tmp_path):
    source = copy_sources(tmp_path)
    in_use = source / "fastloop" / "fastloader" / "_core.abi3.so"
    in_use.write_bytes(b"of an editable install")
    process = build(source, tmp_path, "--wheel")
    assert process.returncode == 0, process.stderr
    (wheel,) = tmp_path.glob("*-cp311-abi3-*.whl")
    core = zipfile.ZipFile(wheel).read("fastloop/fastloader/_core.abi3.so")
    assert core.startswith((b"\x7fELF", b"\xcf\xfa\xed\xfe"))
    assert in_use.read_bytes() == b"of an editable install"


@pytest.mark.nightly  # .ci/run installs the package so before it runs `make test`
@needs_compiler
def test_without_libjpeg_turbo_the_wheel_lacks_its_decoder_and_says_so(tmp_path):
    compiler = tmp_path / "cc-without-jpeg"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in */jpeg/*) exit 1;; esac\nexec {shlex.join(COMPILER)} "$@"\n'
    )
    compiler.chmod(0o755)
    process = build(copy_sources(tmp_path), tmp_path, "--wheel", CC=str(compiler))
    assert process.returncode == 0, process.stderr
    (wheel,) = tmp_path.glob("*-cp311-abi3-*.whl")
    binaries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert binaries == ["fastloop/fastloader/_core.abi3.so"]
    said = process.stdout + process.stderr
    assert "decoder of JPEG images is left out: it needs libjpeg-turbo" in said
    assert "apt-get install libjpeg62-turbo-dev" in said


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    variables = os.environ | environment
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm: binutils are not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems list symbols otherwise")
@pytest.mark.parametrize("name", ["_core", "_jpeg"])
def test_extension_exports_its_entry_point_alone(name):
    extension = find_spec(f"fastloop.fastloader.{name}")
    if extension is None or extension.origin is None:
        pytest.skip(f"{name} is not built here")
    command = ["nm", "--dynamic", "--defined-only", extension.origin]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    symbols = [line.split()[-1] for line in process.stdout.splitlines()]
    assert symbols == [f"PyInit_{name}"]


@pytest.mark.nightly
def test_variables_choose_the_engine():
    both = {"FASTLOOP_PURE": "1", "FASTLOOP_NATIVE": "1"}
    process = run_python("import fastloop; print(fastloop.has_core())", **both)
    assert process.stdout == "False\n", process.stderr
    absent = "import sys; sys.modules['fastloop.fastloader._core'] = None; import fastloop;"
    process = run_python(
        f"{absent} print(fastloop.has_core())", FASTLOOP_PURE="", FASTLOOP_NATIVE=""
    )
    assert process.stdout == "False\n", process.stderr
    process = run_python(f"{absent} fastloop.has_core()", FASTLOOP_PURE="", FASTLOOP_NATIVE="1")
    assert process.stderr.splitlines()[-1].startswith(
        "ImportError: FASTLOOP_NATIVE=1, but the native core is absent"
    )
