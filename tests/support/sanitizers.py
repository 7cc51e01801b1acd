"""C programs compiled with the compiler's sanitizers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from options import REPOSITORY

NATIVE = REPOSITORY / "fastloop" / "fastloader" / "native"
COMPILER = shlex.split(os.environ.get("CC") or "cc")
FLAGS = ["-std=c11", "-O1", "-g", "-ffp-contract=off", "-pthread", "-Wall", "-Wextra", "-Werror"]


def compile_with(
    sanitizer: str, sources: list[Path], target: Path, libraries: Sequence[str] = ()
) -> subprocess.CompletedProcess:
    """Compile sources that include the native parts' headers."""
    include = [f"-I{NATIVE}", f"-I{NATIVE / 'jpeg'}"]
    flags = [*FLAGS, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", *include]
    command = [*COMPILER, *flags, *map(str, sources), *libraries, "-o", str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def skip_without(sanitizer: str, folder: Path) -> None:
    """Skip the test where this machine's compiler lacks the sanitizer."""
    if shutil.which(COMPILER[0]) is None:
        pytest.skip(f"no C compiler: {COMPILER[0]} is not installed")
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    result = compile_with(sanitizer, [empty], folder / "empty")
    if result.returncode or subprocess.run([folder / "empty"], check=False).returncode:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer: {result.stderr.strip()}")
