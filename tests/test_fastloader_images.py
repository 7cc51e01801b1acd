"""Encoded images as a column: the decoders agree, files are named, nothing is decoded twice."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from options import library
from pictures import crop, jpeg, png, translucent, turned, write
from PIL import Image

from fastloop import FastLoader, Images
from fastloop.fastloader.codecs import LIBRARIES

DECODERS = sorted(LIBRARIES)


def available(decoder: str) -> str:
    for name in LIBRARIES[decoder][0]:
        library(name)
    return decoder


def pixels(data: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def packed(images: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, images)])
    return np.frombuffer(b"".join(images), np.uint8), offsets


@pytest.fixture
def photos() -> list[bytes]:
    return [jpeg(crop(48, 64, top=3 * index)) for index in range(20)]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("form", ["paths", "bytes", "packed"])
def test_images_come_with_their_labels_in_the_order(tmp_path, photos, decoder, form):
    given = {"bytes": photos, "packed": packed(photos)}
    if form == "paths":
        root = write(tmp_path, {f"{index}.jpg": data for index, data in enumerate(photos)})
        given["paths"] = [root / f"{index}.jpg" for index in range(20)]
    images = Images(given[form], decoder=available(decoder))
    order = torch.randperm(20).tolist()
    loader = FastLoader((images, torch.arange(20)), 6, sampler=order, num_threads=2)
    batches = list(loader)
    assert torch.cat([labels for _, labels in batches]).tolist() == order
    found = torch.cat([one for one, _ in batches]).numpy()
    assert found.shape == (20, 48, 64, 3)
    for image, index in zip(found, order, strict=True):
        assert np.abs(image.astype(int) - pixels(photos[index])).max() <= 2


@pytest.mark.parametrize("size", [(24, 40), (48, 30), (90, 100)], ids=str)
@pytest.mark.parametrize("decoder", DECODERS)
def test_sizes_agree_whoever_decodes(photos, decoder, size):
    """torch's own bilinear interpolation of Pillow's pixels is the answer that is known."""
    images = Images(photos, size, decoder=available(decoder))
    (found,) = FastLoader(images, 20)
    assert found.shape == (20, *size, 3)
    assert found.dtype == torch.uint8
    for image, data in zip(found, photos, strict=True):
        wanted = torch.from_numpy(pixels(data)).permute(2, 0, 1)[None].float()
        wanted = torch.nn.functional.interpolate(wanted, size, mode="bilinear")[0].permute(1, 2, 0)
        assert (image - wanted).abs().max() <= 3


@pytest.mark.parametrize("decoder", DECODERS)
def test_with_antialias_a_pixel_is_a_mean(decoder):
    chess = np.indices((64, 64)).sum(axis=0) % 2 * 255
    image = Image.fromarray(np.repeat(chess[..., None], 3, axis=2).astype(np.uint8))
    made = {
        antialias: Images([png(image)] * 2, (9, 9), antialias=antialias, decoder="pil")
        for antialias in (False, True)
    }
    if decoder != "torchvision":  # which reads no PNG
        for antialias in made:
            made[antialias] = Images(
                [png(image)] * 2, (9, 9), antialias=antialias, decoder=available(decoder)
            )
    spread = {one: next(iter(FastLoader(made[one], 2))).float().std() for one in made}
    assert spread[True] < 30 < spread[False]


@pytest.mark.parametrize("decoder", DECODERS)
def test_channels_first_is_a_view_that_lies_channels_last(photos, decoder):
    available(decoder)
    (last,) = FastLoader(Images(photos, (32, 32), decoder=decoder), 20)
    (first,) = FastLoader(Images(photos, (32, 32), decoder=decoder, channels_first=True), 20)
    assert first.shape == (20, 3, 32, 32)
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(first, last.permute(0, 3, 1, 2))


@pytest.mark.parametrize("decoder", ["simplejpeg", "pil"])
@pytest.mark.parametrize(
    "data",
    [
        jpeg(crop().convert("L")),
        jpeg(crop().convert("CMYK")),
        jpeg(crop(), exif=turned()),
        png(crop()),
        png(crop().convert("L")),
        png(crop().convert("P")),
        png(translucent("RGBA")),
    ],
    ids=["grey", "cmyk", "turned", "png", "grey png", "palette", "translucent"],
)
def test_other_colours_are_what_pillow_makes_of_them(decoder, data):
    (found,) = FastLoader(Images([data], decoder=available(decoder)), 1)
    assert np.abs(found[0].numpy().astype(int) - pixels(data)).max() <= 2


BROKEN = {
    "empty": b"",
    "text": b"no image at all",
    "cut": jpeg(crop())[:900],
    "cut png": png(crop())[:900],
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_in_its_turn(tmp_path, photos, decoder, kind):
    available(decoder)
    files = {f"{index}.jpg": data for index, data in enumerate(photos)}
    root = write(tmp_path, files | {"7.jpg": BROKEN[kind]})
    images = Images([root / name for name in files], (32, 32), decoder=decoder)
    seen = []
    with pytest.raises(ValueError, match=r"/7\.jpg: ."):
        seen += FastLoader(images, 5, num_threads=2)
    seen = []
    with pytest.raises(ValueError, match=r"^image 7"):
        seen.extend(FastLoader(Images(packed([*photos[:7], BROKEN[kind]]), (8, 8)), 2))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.jpg"):
        list(FastLoader(Images([str(tmp_path / "no.jpg")], (8, 8))))


def test_without_a_size_all_have_the_first_ones():
    images = Images([jpeg(crop(48, 64)), jpeg(crop(48, 60))])
    assert images.kind.shape == (48, 64, 3)
    with pytest.raises(ValueError, match=r"image 1: it is 48 x 60, the first one \(48, 64\)"):
        list(FastLoader(images))


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ([], {}, "images are paths, bytes, or"),
        ([1, 2], {}, r"got \['int'\]"),
        ((np.zeros(4, np.uint8), [0, 5]), {}, r"one uint8 array and n \+ 1 rising offsets"),
        ((np.zeros(4, np.uint8), [2, 1]), {}, "rising offsets"),
        ((np.zeros(4), [0, 4]), {}, "got float64"),
        ([b"x"], {"size": (0, 4)}, "size="),
        ([b"x"], {"decoder": "jpeg4py"}, "decoder='jpeg4py': allowed are simplejpeg"),
    ],
)
def test_what_can_not_be_is_refused(given, settings, message):
    with pytest.raises(ValueError, match=message):
        Images(given, **settings)


def test_the_decoder_is_told_and_opencv_has_no_threads_of_its_own(photos):
    cv2 = library("cv2")
    library("simplejpeg")
    images = Images(photos, (32, 32))
    assert images.decoder == "simplejpeg"
    assert repr(images).startswith("Images(20 images, size=(32, 32), ")
    assert "decoder='simplejpeg'" in repr(images)
    list(FastLoader(images, 5))
    assert cv2.getNumThreads() == 1
    assert pickle.loads(pickle.dumps(images)).kind == images.kind


def test_an_absent_library_is_told_with_its_command():
    program = (
        "import sys\n"
        "sys.modules['cv2'] = None\n"
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'cv2' else find(name)\n"
        "from fastloop import Images\n"
        "print(Images([b'']).decoder)\n"
        "try:\n    Images([b''], decoder='simplejpeg')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    default, refusal = done.stdout.splitlines()
    assert default in ("torchvision", "pil")
    assert "pip install simplejpeg opencv-python-headless" in refusal
