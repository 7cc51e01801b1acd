"""Marks for tests of the native decoder; where all libraries are required, they fail without it."""

from __future__ import annotations

import pytest
from native_core import IS_PURE, IS_REQUIRED

from fastloop.fastloader import has_jpeg

needs_jpeg = pytest.mark.skipif(
    not has_jpeg() and (IS_PURE or not IS_REQUIRED),
    reason="no native core: libjpeg62-turbo-dev and `pip install -e .` make the decoder of JPEG",
)
