"""The contract of every decoder found in conf/decoder: the same pixels, or BadData, never others.

Tolerance: 2 of 255. Measured: no difference at all on photographs, JPEG and PNG of any colours
(libjpeg-turbo in each of them); OpenCV's own conversion of CMYK rounds otherwise, by up to 2.
"""

from __future__ import annotations

import pickle
import sys
from functools import cache

import numpy as np
import pytest
from options import compose_job, options
from pictures import (
    PHOTOGRAPHS,
    crop,
    jpeg,
    photograph,
    png,
    translucent,
    turned,
    with_thumbnail,
    without_adobe,
)
from PIL import Image, features

from fastloop.datasets.photos import Photos
from fastloop.images import rgb_of_cmyk
from fastloop.job import check_support
from fastloop.protocols import Decoder
from fastloop.types import BadData, Unsupported

TOLERANCE = 2
DECODERS = options("decoder")
IMAGES = {
    "grey JPEG": jpeg(crop().convert("L")),
    "CMYK JPEG": jpeg(crop().convert("CMYK")),
    "CMYK JPEG of nobody": without_adobe(jpeg(crop().convert("CMYK"))),
    "progressive JPEG": jpeg(crop(), progressive=True),
    "JPEG stored as RGB": jpeg(crop(), keep_rgb=True),
    "JPEG of odd sides": jpeg(crop(33, 47)),
    "JPEG with a thumbnail": with_thumbnail(jpeg(crop())),
    "JPEG to be turned": jpeg(crop(), exif=turned()),
    "JPEG with more behind it": jpeg(crop()) + b"more" * 99,
    "PNG": png(crop()),
    "grey PNG": png(crop().convert("L")),
    "PNG with alpha": png(translucent("RGBA")),
    "grey PNG with alpha": png(translucent("LA")),
    "PNG of a palette": png(crop().convert("P")),
    "PNG of four colours": png(crop().quantize(4), bits=2),
    "PNG of a palette with alpha": png(crop().convert("P"), transparency=bytes(range(256))),
    "PNG of black and white": png(crop().convert("1")),
    "PNG with a colour for nothing": png(crop(), transparency=(1, 2, 3)),
}
A_JPEG, A_PNG = jpeg(photograph()), png(crop())
BROKEN = {
    "nothing": (b"", "the file is empty"),
    "text": (b"not an image at all\n" * 99, "neither a JPEG nor a PNG"),
    "a page": (b"<html>404</html>", "neither a JPEG nor a PNG"),
    "half a JPEG": (A_JPEG[: len(A_JPEG) // 2], "a broken JPEG"),
    "a JPEG without its last bytes": (A_JPEG[:-40], "a broken JPEG"),
    "a JPEG's header": (A_JPEG[:100], "a broken JPEG"),
    "half a JPEG with a thumbnail": (with_thumbnail(A_JPEG)[:-9999], "a broken JPEG"),
    "half a CMYK JPEG": (IMAGES["CMYK JPEG"][:-300], "a broken CMYK JPEG"),
    "half a PNG": (A_PNG[: len(A_PNG) // 2], "PNG"),
    "a PNG with other bytes": (A_PNG[:999] + b"\0\1\2\3" + A_PNG[1003:], "PNG"),
    "a PNG of 16 bits": (png(Image.fromarray(np.full((9, 9), 999, np.uint16))), "16 bits"),
}


@cache
def made(name: str) -> Decoder:
    return compose_job("dataset=photos", f"decoder={name}").dataset.decoder


def difference(decoder: str, data: bytes) -> int:
    """The largest between this decoder and Pillow, in 255ths."""
    pixels, wanted = made(decoder).decode(data), made("pil").decode(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == wanted.shape
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    return int(np.abs(pixels.astype(int) - wanted).max())


@pytest.mark.parametrize("name", ["china", "flower"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_decoders_agree_on_real_photographs(decoder, name):
    assert difference(decoder, (PHOTOGRAPHS / f"{name}.jpg").read_bytes()) <= TOLERANCE


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_kind_of_image_becomes_the_rgb_that_pillow_makes_of_it(decoder, data):
    if decoder == "turbojpeg" and data.startswith(b"\x89PNG"):
        with pytest.raises(BadData, match="a PNG file, and decoder=turbojpeg reads JPEG only"):
            made(decoder).decode(data)
    else:
        assert difference(decoder, data) <= TOLERANCE


@pytest.mark.parametrize(("data", "why"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_what_is_broken_is_bad_data_in_one_line(decoder, data, why):
    with pytest.raises(BadData, match=why) as caught:
        made(decoder).decode(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_what_pillows_conversion_makes_of_colours():
    def first(image: Image.Image) -> list[int]:
        return made("pil").decode(png(image))[0, 0].tolist()

    assert first(Image.new("L", (4, 4), 7)) == [7, 7, 7]
    assert first(Image.new("RGBA", (4, 4), (10, 20, 30, 0))) == [10, 20, 30]  # and not black
    assert first(Image.new("RGBA", (4, 4), (10, 20, 30, 128))) == [10, 20, 30]
    stored = np.array([[[255, 255, 255, 255], [255, 255, 255, 0], [0, 255, 255, 128]]], np.uint8)
    assert rgb_of_cmyk(stored).tolist() == [[[255, 255, 255], [0, 0, 0], [0, 128, 128]]]


def test_our_conversion_of_cmyk_is_pillows_for_any_values():
    stored = np.random.default_rng(0).integers(0, 256, (64, 64, 4), np.uint8)
    ink = Image.frombytes("CMYK", (64, 64), (255 - stored).tobytes())
    assert (rgb_of_cmyk(stored) == np.asarray(ink.convert("RGB"))).all()


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_is_plain_data_and_names_its_library(decoder):
    one = made(decoder)
    assert pickle.loads(pickle.dumps(one)) == one
    assert any(letter.isdigit() for letter in one.library())


def test_pillow_says_which_libjpeg_turbo_it_has():
    turbo = features.version_feature("libjpeg_turbo")
    assert (f"libjpeg-turbo {turbo}" if turbo else "without") in made("pil").library()


@pytest.mark.parametrize(
    ("decoder", "library", "package"),
    [("turbojpeg", "simplejpeg", "simplejpeg"), ("opencv", "cv2", "opencv-python-headless")],
)
def test_an_absent_library_is_unsupported_with_the_command_that_installs_it(
    outputs, monkeypatch, decoder, library, package
):
    dataset = compose_job("dataset=photos", "dataset.count=2", f"decoder={decoder}").dataset
    module = sys.modules[type(dataset.decoder).__module__]
    getattr(module, f"_{library}").cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unsupported, match=f"^decoder={decoder} .*pip install {package}$"):
        dataset.fetch()


@pytest.mark.parametrize("dataset", ["photos", "image_folder", "csv_images"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_command_line_chooses_the_decoder_of_every_dataset_of_images(dataset, decoder):
    plain = compose_job(f"dataset={dataset}")
    assert type(plain.decoder).__module__ == "fastloop.decoders.pil"
    job = compose_job(f"dataset={dataset}", f"decoder={decoder}")
    assert type(job.decoder).__module__ == f"fastloop.decoders.{decoder}"
    assert job.dataset.decoder == job.decoder
    assert job == compose_job(f"decoder={decoder}", f"dataset={dataset}")
    check_support(compose_job(f"dataset={dataset}", "benchmark=traversal"))


def test_a_dataset_without_images_has_no_decoder():
    assert compose_job().decoder is None
    with pytest.raises(Unsupported, match="decoder=pil: dataset digits has no encoded images"):
        check_support(compose_job("decoder=pil", "dataset=digits"))


def test_the_crops_fit_into_the_photographs():
    with pytest.raises(ValueError, match="640"):
        Photos(root="", count=2, crop=(1, 641), size=None, decoder=made("pil"))
