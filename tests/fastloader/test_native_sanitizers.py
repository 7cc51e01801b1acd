"""The native core under stress, without Python, finds no fault with the compiler's sanitizers."""

from __future__ import annotations

import subprocess

import pytest
from options import REPOSITORY
from sanitizers import NATIVE, compile_with, skip_without

STRESS = REPOSITORY / "tests" / "support" / "native_stress.c"


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing_in_streams_under_stress(sanitizer, tmp_path):
    skip_without(sanitizer, tmp_path)
    sources = sorted(NATIVE.glob("*.c"))
    target = tmp_path / "stress"
    result = compile_with(sanitizer, [STRESS, *sources], target)
    assert result.returncode == 0, result.stderr
    result = subprocess.run([target, "400"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "400 epochs\n")
