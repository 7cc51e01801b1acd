"""Encoded images as a column: the decoders agree, and errors name the file."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from image_samples import BROKEN, IMAGES, crop, jpeg, png, write_files
from options import require_library
from PIL import Image

from fastloop import FastLoader, Images
from fastloop.fastloader.columns.decoders import LIBRARIES

DECODERS = sorted(LIBRARIES)


def require_decoder(decoder: str) -> str:
    for name in LIBRARIES[decoder][0]:
        require_library(name)
    return decoder


def pixels(data: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    image.info.pop("transparency", None)  # Pillow warns when it drops a palette's
    return np.array(image.convert("RGB"))


def pack_images(images: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, images)])
    return np.frombuffer(b"".join(images), np.uint8), offsets


@pytest.fixture
def photos() -> list[bytes]:
    return [jpeg(crop(48, 64, top=3 * index)) for index in range(20)]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("form", ["paths", "bytes", "packed"])
def test_loader_delivers_images_with_their_labels_in_order(tmp_path, photos, decoder, form):
    sources = {"bytes": photos, "packed": pack_images(photos)}
    if form == "paths":
        root = write_files(tmp_path, {f"{index}.jpg": data for index, data in enumerate(photos)})
        sources["paths"] = [root / f"{index}.jpg" for index in range(20)]
    images = Images(sources[form], decoder=require_decoder(decoder))
    order = torch.randperm(20).tolist()
    loader = FastLoader((images, torch.arange(20)), 6, sampler=order, num_threads=2)
    batches = list(loader)
    assert torch.cat([labels for _, labels in batches]).tolist() == order
    decoded = torch.cat([batch for batch, _ in batches]).numpy()
    assert decoded.shape == (20, 48, 64, 3)
    for image, index in zip(decoded, order, strict=True):
        assert np.abs(image.astype(int) - pixels(photos[index])).max() <= 2


@pytest.mark.parametrize("size", [(24, 40), (48, 30), (90, 100)], ids=str)
@pytest.mark.parametrize("decoder", DECODERS)
def test_resized_images_agree_with_torch_for_every_decoder(photos, decoder, size):
    """The reference is torch's bilinear interpolation of the pixels that Pillow decodes."""
    images = Images(photos, size, decoder=require_decoder(decoder))
    (batch,) = FastLoader(images, 20)
    assert batch.shape == (20, *size, 3)
    assert batch.dtype == torch.uint8
    for image, data in zip(batch, photos, strict=True):
        expected = torch.from_numpy(pixels(data)).permute(2, 0, 1)[None].float()
        expected = torch.nn.functional.interpolate(expected, size, mode="bilinear")[0].permute(
            1, 2, 0
        )
        assert (image - expected).abs().max() <= 3


@pytest.mark.parametrize("decoder", DECODERS)
def test_antialias_averages_pixels(decoder):
    chess = np.indices((64, 64)).sum(axis=0) % 2 * 255
    image = Image.fromarray(np.repeat(chess[..., None], 3, axis=2).astype(np.uint8))
    images = {
        antialias: Images(
            [png(image)] * 2, (9, 9), antialias=antialias, decoder=require_decoder(decoder)
        )
        for antialias in (False, True)
    }
    spread = {key: next(iter(FastLoader(images[key], 2))).float().std() for key in images}
    assert spread[True] < 30 < spread[False]


@pytest.mark.parametrize("decoder", DECODERS)
def test_channels_first_is_a_channels_last_view(photos, decoder):
    require_decoder(decoder)
    (last,) = FastLoader(Images(photos, (32, 32), decoder=decoder), 20)
    (first,) = FastLoader(Images(photos, (32, 32), decoder=decoder, channels_first=True), 20)
    assert first.shape == (20, 3, 32, 32)
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(first, last.permute(0, 3, 1, 2))


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_image_kind_decodes_to_the_rgb_of_pillow(decoder, data):
    require_decoder(decoder)
    expected = pixels(data)
    for form in ([data], pack_images([data]), [memoryview(data)]):
        (decoded,) = FastLoader(Images(form, decoder=decoder), 1)
        assert decoded[0].shape == expected.shape
        assert np.abs(decoded[0].numpy().astype(int) - expected).max() <= 2


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_broken_image_is_named_at_its_batch(tmp_path, photos, decoder, data, message):
    require_decoder(decoder)
    files = {f"{index}.jpg": photo for index, photo in enumerate(photos)}
    root = write_files(tmp_path, files | {"7.jpg": data})
    images = Images([root / name for name in files], (32, 32), decoder=decoder)
    seen = []
    with pytest.raises(ValueError, match=rf"/7\.jpg: .*{message}") as caught:
        seen += FastLoader(images, 5, num_threads=2)
    assert "\n" not in str(caught.value)
    seen = []
    with pytest.raises(ValueError, match=rf"^image 7 \(bytes .*{message}"):
        seen.extend(
            FastLoader(Images(pack_images([*photos[:7], data]), (8, 8), decoder=decoder), 2)
        )


def test_missing_image_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.jpg"):
        list(FastLoader(Images([str(tmp_path / "no.jpg")], (8, 8))))


def test_images_without_size_must_match_the_first_image():
    images = Images([jpeg(crop(48, 64)), jpeg(crop(48, 60))])
    assert images.spec.shape == (48, 64, 3)
    with pytest.raises(ValueError, match=r"image 1: it is 48 x 60, the first one \(48, 64\)"):
        list(FastLoader(images))


@pytest.mark.parametrize(
    ("images", "settings", "message"),
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
def test_images_reject_invalid_arguments(images, settings, message):
    with pytest.raises(ValueError, match=message):
        Images(images, **settings)


def test_images_show_their_decoder_and_disable_opencv_threads(photos):
    cv2 = require_library("cv2")
    require_library("simplejpeg")
    images = Images(photos, (32, 32))
    assert images.decoder == "simplejpeg"
    assert repr(images).startswith("Images(20 images, size=(32, 32), ")
    assert "decoder='simplejpeg'" in repr(images)
    list(FastLoader(images, 5))
    assert cv2.getNumThreads() == 1
    assert pickle.loads(pickle.dumps(images)).spec == images.spec


@pytest.mark.heavy
def test_absent_decoder_library_is_reported_with_its_install_command():
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
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    default, message = process.stdout.splitlines()
    assert default in ("torchvision", "pil")
    assert "pip install simplejpeg opencv-python-headless" in message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise RuntimeError('operator nms does not exist')",
            "torchvision can't be imported (RuntimeError: operator nms does not exist)",
        ),
        pytest.param("", "torchvision has no image decoders", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.heavy
def test_broken_torchvision_is_told_with_what_is_wrong(tmp_path, photos, code, reason):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "io.py").write_text("")
    (tmp_path / "photo.jpg").write_bytes(photos[0])
    script = (
        "import fastloop\n"
        "try:\n    fastloop.Images(['photo.jpg'], decoder='torchvision').spec\n"
        "except ImportError as error:\n    print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith(f"decoder='torchvision': {reason}; ")
    assert process.stdout.endswith("pip install torchvision\n")
