"""The native decoder of JPEG images, fed with broken files, has no fault that sanitizers find."""

from __future__ import annotations

import os
import subprocess

import pytest
from image_samples import crop, jpeg, orientation, write_files
from native_jpeg import needs_jpeg
from options import REPOSITORY
from sanitizers import NATIVE, compile_with, skip_without

STRESS = REPOSITORY / "tests" / "support" / "jpeg_stress.c"
FILES = {
    "plain.jpg": jpeg(crop(70, 90)),
    "full.jpg": jpeg(crop(70, 90), subsampling=0),
    "progressive.jpg": jpeg(crop(70, 90), progressive=True),
    "grey.jpg": jpeg(crop(70, 90).convert("L")),
    "restarts.jpg": jpeg(crop(70, 90), restart_marker_blocks=2),
    "codes.jpg": jpeg(crop(70, 90), quality=100, optimize=True),
    "rows.jpg": jpeg(crop(70, 90), restart_marker_rows=1),
    "each.jpg": jpeg(crop(70, 90), subsampling=0, restart_marker_blocks=1),
    "greys.jpg": jpeg(crop(70, 90).convert("L"), restart_marker_blocks=6),
    "turned.jpg": jpeg(crop(70, 90), exif=orientation(6)),
    "mirrored.jpg": jpeg(crop(70, 90), exif=orientation(4), restart_marker_rows=1),
}


@needs_jpeg
@pytest.mark.heavy
@pytest.mark.parametrize("flags", ["", "-U__SSE2__"], ids=["vectors", "plain"])
def test_sanitizers_find_nothing_in_broken_images(flags, tmp_path):
    sanitizer = "address,undefined"
    skip_without(sanitizer, tmp_path)
    sources = [path for path in sorted((NATIVE / "jpeg").glob("*.c")) if path.name != "module.c"]
    target = tmp_path / "stress"
    libraries = [*flags.split(), "-ljpeg", "-lm"]
    result = compile_with(sanitizer, [STRESS, *sources], target, libraries)
    assert result.returncode == 0, result.stderr
    root = write_files(tmp_path, FILES)
    command = [target, "4000", *(root / name for name in FILES)]
    environment = os.environ | {"ASAN_OPTIONS": "hard_rss_limit_mb=1024"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "some were made\n")
