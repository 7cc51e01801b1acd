"""The native core under stress, without Python, finds no fault with the compiler's sanitizers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from options import REPOSITORY

NATIVE = REPOSITORY / "fastloop" / "fastloader" / "native"
STRESS = REPOSITORY / "tests" / "support" / "native_stress.c"
COMPILER = shlex.split(os.environ.get("CC") or "cc")
FLAGS = ["-std=c11", "-O1", "-g", "-ffp-contract=off", "-pthread", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["address,undefined", "thread"]


def compile_with(sanitizer: str, sources: list[Path], target: Path) -> subprocess.CompletedProcess:
    flags = [*FLAGS, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    command = [*COMPILER, *flags, *map(str, sources), "-o", str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(params=SANITIZERS)
def sanitizer(request, tmp_path) -> str:
    """A sanitizer that this machine's compiler has."""
    if shutil.which(COMPILER[0]) is None:
        pytest.skip(f"no C compiler: {COMPILER[0]} is not installed")
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    result = compile_with(request.param, [empty], tmp_path / "empty")
    if result.returncode or subprocess.run([tmp_path / "empty"], check=False).returncode:
        pytest.skip(f"the compiler has no {request.param} sanitizer: {result.stderr.strip()}")
    return request.param


@pytest.mark.heavy
def test_sanitizers_find_nothing_in_streams_under_stress(sanitizer, tmp_path):
    sources = [path for path in sorted(NATIVE.glob("*.c")) if path.name != "module.c"]
    target = tmp_path / "stress"
    result = compile_with(sanitizer, [STRESS, *sources], target)
    assert result.returncode == 0, result.stderr
    result = subprocess.run([target, "400"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "400 epochs\n")
