"""Contract of every decoder in conf/decoder: Pillow's pixels within a tolerance, or BadData.

Tolerance: 2 of 255. Measured: no difference on photographs, JPEG and PNG files of any colour mode
(every library uses libjpeg-turbo); OpenCV's own conversion of CMYK rounds differently, by up to 2.
"""

from __future__ import annotations

import pickle
import sys
from functools import cache

import numpy as np
import pytest
from image_samples import BROKEN, IMAGES, PHOTOGRAPHS, png
from options import compose_job, options
from PIL import Image, features

from fastloop.config.catalogue import groups
from fastloop.core.protocols import Decoder
from fastloop.core.types import BadData, Unsupported
from fastloop.fastloader.columns.decoders import cmyk_to_rgb
from fastloop.options.dataset.photos import Photos
from fastloop.trial.support import check_support

TOLERANCE = 2
DECODERS = options("decoder")


@cache
def build_decoder(name: str) -> Decoder:
    return compose_job("dataset=photos", f"decoder={name}").dataset.decoder


def difference(decoder: str, data: bytes) -> int:
    """Largest difference between this decoder's pixels and Pillow's, on the scale of 255."""
    pixels, wanted = build_decoder(decoder).decode(data), build_decoder("pil").decode(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == wanted.shape
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    return int(np.abs(pixels.astype(int) - wanted).max())


@pytest.mark.parametrize("name", ["china", "flower"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoder_agrees_with_pillow_on_real_photographs(decoder, name):
    assert difference(decoder, (PHOTOGRAPHS / f"{name}.jpg").read_bytes()) <= TOLERANCE


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoder_converts_every_image_mode_to_rgb_as_pillow_does(decoder, data):
    if decoder == "turbojpeg" and data.startswith(b"\x89PNG"):
        with pytest.raises(BadData, match="a PNG file; decoder=turbojpeg reads JPEG only"):
            build_decoder(decoder).decode(data)
    else:
        assert difference(decoder, data) <= TOLERANCE


@pytest.mark.parametrize(("data", "reason"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoder_reports_a_broken_image_in_one_line(decoder, data, reason):
    with pytest.raises(BadData, match=reason) as error:
        build_decoder(decoder).decode(data)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 160


def test_pil_decoder_converts_each_colour_mode_to_rgb():
    def read_first_pixel(image: Image.Image) -> list[int]:
        return build_decoder("pil").decode(png(image))[0, 0].tolist()

    assert read_first_pixel(Image.new("L", (4, 4), 7)) == [7, 7, 7]
    # A transparent pixel keeps its colour and does not turn black.
    assert read_first_pixel(Image.new("RGBA", (4, 4), (10, 20, 30, 0))) == [10, 20, 30]
    assert read_first_pixel(Image.new("RGBA", (4, 4), (10, 20, 30, 128))) == [10, 20, 30]
    stored = np.array([[[255, 255, 255, 255], [255, 255, 255, 0], [0, 255, 255, 128]]], np.uint8)
    assert cmyk_to_rgb(stored).tolist() == [[[255, 255, 255], [0, 0, 0], [0, 128, 128]]]


def test_cmyk_to_rgb_equals_pillows_conversion_for_random_values():
    stored = np.random.default_rng(0).integers(0, 256, (64, 64, 4), np.uint8)
    ink = Image.frombytes("CMYK", (64, 64), (255 - stored).tobytes())
    assert (cmyk_to_rgb(stored) == np.asarray(ink.convert("RGB"))).all()


@pytest.mark.parametrize("decoder", DECODERS)
def test_decoder_is_picklable_and_names_its_library_version(decoder):
    instance = build_decoder(decoder)
    assert pickle.loads(pickle.dumps(instance)) == instance
    assert any(letter.isdigit() for letter in instance.library())


def test_list_of_decoders_tells_which_one_is_deprecated_and_what_replaces_it():
    (decoders,) = [group for group in groups() if group.name == "decoder"]
    told = {option.name: option.meaning for option in decoders.options}
    assert "deprecated" in told.pop("torchvision")
    assert "replaces torchvision" in told["torchcodec"]
    assert not any("deprecated" in meaning for meaning in told.values())


def test_pil_decoder_names_its_libjpeg_turbo_version():
    turbo = features.version_feature("libjpeg_turbo")
    assert (f"libjpeg-turbo {turbo}" if turbo else "without") in build_decoder("pil").library()


@pytest.mark.parametrize(
    ("decoder", "library", "package"),
    [
        ("turbojpeg", "simplejpeg", "simplejpeg"),
        ("opencv", "cv2", "opencv-python-headless"),
        ("torchcodec", "torchcodec", "torchcodec"),
    ],
)
def test_decoder_without_its_library_names_the_install_command(
    outputs, monkeypatch, decoder, library, package
):
    dataset = compose_job("dataset=photos", "dataset.count=2", f"decoder={decoder}").dataset
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unsupported, match=f"^decoder={decoder} .*pip install {package}$"):
        dataset.fetch()


@pytest.mark.parametrize("dataset", ["photos", "image_folder", "csv_images"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_command_line_selects_the_decoder_of_every_image_dataset(dataset, decoder):
    plain = compose_job(f"dataset={dataset}")
    assert type(plain.decoder).__module__ == "fastloop.options.decoder.pil"
    job = compose_job(f"dataset={dataset}", f"decoder={decoder}")
    assert type(job.decoder).__module__ == f"fastloop.options.decoder.{decoder}"
    assert job.dataset.decoder == job.decoder
    assert job == compose_job(f"decoder={decoder}", f"dataset={dataset}")
    check_support(compose_job(f"dataset={dataset}", "benchmark=traversal"))


def test_dataset_without_encoded_images_has_no_decoder():
    assert compose_job().decoder is None
    with pytest.raises(Unsupported, match="decoder=pil: dataset digits has no encoded images"):
        check_support(compose_job("decoder=pil", "dataset=digits"))


def test_photos_reject_a_crop_larger_than_the_photographs():
    with pytest.raises(ValueError, match="640"):
        Photos(root="", count=2, crop=(1, 641), size=None, decoder=build_decoder("pil"))
