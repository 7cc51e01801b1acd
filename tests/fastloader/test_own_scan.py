"""The native decoder reads the codes of JPEGs itself only with a libjpeg in which it can."""

from __future__ import annotations

import subprocess
from io import BytesIO

import numpy as np
import pytest
from image_samples import crop, jpeg, write_files
from native_jpeg import needs_jpeg
from options import REPOSITORY
from PIL import Image
from sanitizers import NATIVE, compile_with, skip_without

from fastloop import CenterCrop, Images
from fastloop.fastloader.columns.decoders import describe_native_decoder, load_jpeg

WRONG = REPOSITORY / "tests" / "support" / "jpeg_wrong_scan.c"


@needs_jpeg
def test_codes_are_read_here_and_the_decoders_name_says_so(tmp_path):
    assert load_jpeg().own_scan_problem() is None
    assert describe_native_decoder() == "native"
    root = write_files(tmp_path, {"a.jpg": jpeg(crop(70, 90))})
    assert Images([root / "a.jpg"], crop=CenterCrop(8, resize=8)).decoder == "native"


@needs_jpeg
@pytest.mark.heavy
def test_scan_that_reads_wrongly_is_found_and_libjpeg_reads_in_its_place(tmp_path):
    skip_without("address,undefined", tmp_path)
    left_out = ("module.c", "entropy_scan.c")
    sources = [path for path in (NATIVE / "jpeg").glob("*.c") if path.name not in left_out]
    result = compile_with(
        "address,undefined", [WRONG, *sources], tmp_path / "wrong", ["-ljpeg", "-lm"]
    )
    assert result.returncode == 0, result.stderr
    data = jpeg(crop(16, 16))
    root = write_files(tmp_path, {"a.jpg": data})
    command = [tmp_path / "wrong", root / "a.jpg"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    before, is_libjpegs, problem, units, total = result.stdout.splitlines()
    assert before == "it has not been checked"
    assert is_libjpegs == "0"  # memory that was allocated
    assert problem == "this libjpeg decodes an image differently"
    assert units == "1 0"  # the wrong scan was tried, and never afterwards
    with Image.open(BytesIO(data)) as image:
        assert int(total) == np.asarray(image.convert("RGB")).astype(int).sum()
