"""Tests of the native core need it; where all libraries are required, its absence is a failure."""

from __future__ import annotations

import os

import pytest

from fastloop.fastloader.load_native_core import has_core

IS_REQUIRED = os.environ.get("FASTLOOP_TEST_ALL_LIBRARIES") == "1"
IS_PURE = os.environ.get("FASTLOOP_PURE") == "1"
needs_core = pytest.mark.skipif(
    not has_core() and (IS_PURE or not IS_REQUIRED),
    reason="no native core: `pip install -e .` compiles it",
)
