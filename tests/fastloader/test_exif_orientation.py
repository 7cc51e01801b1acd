"""EXIF orientation: images are cut as exif_transpose shows them, by default as they are stored."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_samples import crop, jpeg, orientation, photograph, png
from native_jpeg import needs_jpeg
from options import require_library
from PIL import Image, ImageOps
from torchvision.transforms import v2

from fastloop import (
    CenterCrop,
    FastLoader,
    Images,
    LongestSide,
    RandomResizedCrop,
    open_store,
    write_store,
)
from fastloop.fastloader.columns.decoders import LIBRARIES, load_jpeg
from fastloop.fastloader.columns.image_headers import read_orientation

ORIENTATIONS = range(1, 9)
DECODERS = [pytest.param("native", marks=needs_jpeg), "pil", None]
WAYS = {
    "random": RandomResizedCrop(40),
    "enlarged": RandomResizedCrop((50, 23), (0.01, 0.1)),
    "center": CenterCrop((64, 48), 70),
}
PHOTO = photograph().crop((40, 20, 193, 131))
"""Its sides differ, and are odd."""
TAG = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
"""The entry of a quarter turn."""


def turned(number: int, image: Image.Image = PHOTO, **options) -> bytes:
    return jpeg(image, exif=orientation(number), **options)


def shown(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def batch_of(encoded, **settings) -> torch.Tensor:
    (batch,) = FastLoader(Images(encoded, **settings), len(encoded), seed=5)
    return batch


def assert_near(samples: torch.Tensor, expected: torch.Tensor, most: float) -> None:
    assert (samples.dtype, samples.shape) == (expected.dtype, expected.shape)
    assert (samples.double() - expected.double()).abs().max() <= most


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("number", ORIENTATIONS)
def test_crops_are_those_of_the_image_that_is_shown(number, decoder, way):
    for options in ({"subsampling": 2}, {"progressive": True}, {"restart_marker_blocks": 3}):
        data = turned(number, **options)
        settings = {"crop": way, "flip": 0.5}
        samples = batch_of([data] * 12, decoder=decoder, apply_exif_orientation=True, **settings)
        assert_near(samples, batch_of([png(shown(data))] * 12, decoder="pil", **settings), 1)


@pytest.mark.parametrize("number", ORIENTATIONS)
def test_crops_are_those_of_torchvision_behind_exif_transpose(number):
    data, way = turned(number), CenterCrop(64, 72)
    reference = v2.Compose([v2.Resize(72), v2.CenterCrop(64), v2.PILToTensor()])
    samples = batch_of([data], crop=way, apply_exif_orientation=True)
    assert_near(samples[0], reference(shown(data)), 2)


@needs_jpeg
@pytest.mark.parametrize("number", ORIENTATIONS)
def test_native_crops_are_made_natively_in_every_dtype_and_layout(number):
    data = turned(number)
    reference = batch_of([png(shown(data))] * 4, crop=WAYS["random"], flip=0.5)
    for dtype in (torch.float32, torch.bfloat16):
        for layout in ("CHW", "channels_last"):
            images = Images(
                [data] * 4,
                crop=WAYS["random"],
                flip=0.5,
                dtype=dtype,
                layout=layout,
                decoder="native",
                apply_exif_orientation=True,
            )
            (batch,) = FastLoader(images, 4, seed=5)
            assert_near(batch.float() * 255, reference.float(), 1.01 if dtype.itemsize > 2 else 2)
    keys, out = np.arange(4, dtype=np.uint64), np.empty((4, 3, 40, 40), np.uint8)
    arguments = (data,) * 4, False, keys, (*WAYS["random"].native, 0.5, True)
    pixels = 0, False, (1.0,) * 3, (0.0,) * 3
    assert load_jpeg().make_samples(*arguments, pixels, out) == b"\1" * 4


@pytest.mark.parametrize("size", [None, (30, 44)], ids=str)
@pytest.mark.parametrize("decoder", sorted(LIBRARIES))
@pytest.mark.parametrize("number", ORIENTATIONS)
def test_whole_images_are_the_ones_that_are_shown(number, decoder, size):
    for name in LIBRARIES[decoder][0]:
        require_library(name)
    data = turned(number)
    settings = {"size": size, "decoder": decoder}
    images = batch_of([data] * 2, apply_exif_orientation=True, **settings)
    assert_near(images, batch_of([png(shown(data))] * 2, **settings), 2)


def webp(number: int) -> bytes:
    file = io.BytesIO()
    PHOTO.save(file, "WEBP", lossless=True, exif=orientation(number))
    return file.getvalue()


KINDS = {
    "PNG": lambda number: png(PHOTO, exif=orientation(number)),
    "WebP": webp,
    "CMYK JPEG": lambda number: turned(number, PHOTO.convert("CMYK")),
    "grey JPEG": lambda number: turned(number, PHOTO.convert("L")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_with_exif_data_is_turned(kind):
    for number in ORIENTATIONS:
        data = KINDS[kind](number)
        assert read_orientation(data) == number
        settings = {"crop": WAYS["center"]}
        samples = batch_of([data], apply_exif_orientation=True, **settings)
        assert_near(samples, batch_of([png(shown(data))], **settings), 1)


def test_pixels_are_as_they_are_stored_unless_asked():
    for settings in ({"crop": WAYS["random"]}, {}):
        plain, other = batch_of([jpeg(PHOTO)], **settings), batch_of([turned(6)], **settings)
        assert torch.equal(plain, other)
    images = Images([turned(6)], apply_exif_orientation=True)
    assert images.spec.shape == (PHOTO.width, PHOTO.height, 3)
    assert "apply_exif_orientation=True" in repr(images)


# ---- broken EXIF data ----


def with_exif(exif: bytes) -> bytes:
    """A JPEG with this segment of EXIF data before all others."""
    data = jpeg(PHOTO)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


def tiff(*entries: bytes, start: int = 8, count: int | None = None, after: int = 0) -> bytes:
    """EXIF data of one directory, which says that the next one begins at `after`."""
    number = len(entries) if count is None else count
    head = b"Exif\0\0II*\0" + struct.pack("<IH", start, number)
    return head + b"".join(entries) + struct.pack("<I", after)


def entry(tag: int = 0x0112, kind: int = 3, count: int = 1, value: int = 6) -> bytes:
    return struct.pack("<HHII", tag, kind, count, value)


HOSTILE = {
    "a directory that follows itself, without a tag": tiff(entry(tag=1), after=8),
    "a directory within itself": tiff(entry(tag=0x8769, kind=4, value=8), after=8),
    "a directory in the header": tiff(TAG, start=0),
    "a directory behind the end": tiff(TAG, start=1000),
    "a directory at the end of memory": tiff(TAG, start=0xFFFFFFFF),
    "a directory at the last byte": tiff(TAG, start=29),
    "more entries than there are": tiff(entry(tag=1), count=65535),
    "no entry": tiff(TAG, count=0),
    "half of an entry": tiff(TAG)[:-8],
    "a header": tiff(TAG)[:14],
    "half of a header": tiff(TAG)[:9],
    "nothing": b"Exif\0\0",
    "half of a name": b"Exif",
    "no byte order": tiff(TAG).replace(b"II", b"IX"),
    "another byte order": tiff(TAG).replace(b"II*\0", b"MM\0*"),
    "a text": tiff(entry(kind=2)),
    "a fraction elsewhere": tiff(entry(kind=5, value=0xFFFFFFF0)),
    "an unknown type": tiff(entry(kind=65535)),
    "no number": tiff(entry(count=0)),
    "several numbers": tiff(entry(count=2)),
    "very many numbers": tiff(entry(count=0xFFFFFFFF)),
    "orientation 0": tiff(entry(value=0)),
    "orientation 9": tiff(entry(value=9)),
    "a large orientation": tiff(entry(kind=4, value=0xFFFFFFFF)),
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # what Pillow thinks of such data
@pytest.mark.parametrize("exif", HOSTILE.values(), ids=HOSTILE)
def test_broken_exif_data_states_the_first_orientation(exif):
    data = with_exif(exif)
    assert read_orientation(data) == 1
    for decoder in ("pil", None):
        settings = {"crop": WAYS["random"], "decoder": decoder}
        samples = batch_of([data] * 2, apply_exif_orientation=True, **settings)
        assert torch.equal(samples, batch_of([jpeg(PHOTO)] * 2, **settings))


@pytest.mark.parametrize(
    "exif",
    [
        tiff(TAG),
        tiff(entry(tag=1), TAG, entry(value=3)),
        tiff(entry(kind=4)),
        tiff(TAG, after=8),
        tiff(TAG, count=65535),
        b"Exif\0\0MM\0*" + struct.pack(">IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0),
    ],
    ids=["short", "second", "long", "cyclic", "too many entries", "big endian"],
)
def test_what_states_an_orientation_is_read(exif):
    data = with_exif(exif)
    assert read_orientation(data) == 6
    samples = batch_of([data], crop=WAYS["center"], apply_exif_orientation=True)
    assert torch.equal(
        samples, batch_of([turned(6)], crop=WAYS["center"], apply_exif_orientation=True)
    )


def test_chunks_that_are_cut_off_state_nothing():
    for data, name in ((KINDS["PNG"](6), b"eXIf"), (KINDS["WebP"](6), b"EXIF")):
        place = data.rindex(name)
        for end in range(place - 4, place + 20):
            assert read_orientation(data[:end]) == 1
        huge = b"\xff\xff\xff\xff"
        at = place - 4 if name == b"eXIf" else place + 4
        assert read_orientation(data[:at] + huge + data[at + 4 :]) == 1
    for data in (b"", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"\x89PNG\r\n\x1a\n", b"GIF89a"):
        assert read_orientation(data) == 1


HEADER = with_exif(tiff(entry(tag=1), TAG, after=8))[:120]
CHANGES = st.lists(
    st.tuples(
        st.integers(2, len(HEADER) - 1), st.sampled_from([0, 1, 2, 6, 8, 255]) | st.integers(0, 255)
    )
)


@needs_jpeg
@given(CHANGES, st.integers(3, len(HEADER)), st.binary(max_size=9))
def test_both_readers_read_the_same_of_any_bytes(changes, end, prefix):
    """`prefix`: what stands before the EXIF data's segment."""
    changed = bytearray(HEADER)
    for place, value in changes:
        changed[place] = value
    data = b"\xff\xd8" + prefix + bytes(changed[2:end])
    if data[2:3] == b"\xff":  # all JPEGs begin so
        assert load_jpeg().read_orientation(data) == read_orientation(data)


# ---- stores ----


@pytest.mark.parametrize("encoding", ["as_is", pytest.param("jpeg", marks=needs_jpeg)])
def test_stores_keep_what_is_shown(tmp_path, encoding):
    photos = [turned(number) for number in ORIENTATIONS] + [KINDS["PNG"](6), KINDS["CMYK JPEG"](8)]
    stored = open_store(write_store(photos, tmp_path / "store", images=encoding))
    settings = {"crop": WAYS["random"], "flip": 0.5, "apply_exif_orientation": True}
    assert torch.equal(batch_of(stored, **settings), batch_of(photos, **settings))
    loader = FastLoader(Images(stored, (30, 40), apply_exif_orientation=True), 10)
    assert torch.equal(
        next(iter(loader)), batch_of(photos, size=(30, 40), apply_exif_orientation=True)
    )


@needs_jpeg
@pytest.mark.parametrize("number", ORIENTATIONS)
def test_smaller_images_are_shown_as_the_large_ones(tmp_path, number):
    long = turned(number)
    rest = b"\xff\xe1" + struct.pack(">H", 65002) + b"Exif\0\0" + bytes(64994)
    place = long.index(b"Exif") - 2  # of the length of its segment
    place += int.from_bytes(long[place : place + 2], "big")
    photos = [turned(number), long[:place] + rest * 2 + long[place:]]
    images = open_store(write_store(photos, tmp_path / "store", images=LongestSide(64, 95)))
    for index, data in enumerate(photos):
        image, whole = shown(images[index].numpy().tobytes()), shown(data)
        assert max(image.size) == 64
        expected = np.asarray(whole.resize(image.size, Image.Resampling.LANCZOS)).astype(int)
        assert np.abs(np.asarray(image) - expected).mean() < 4
        assert read_orientation(images[index].numpy().tobytes()) == number


def test_grey_pixels_of_an_image_without_exif_data_are_untouched():
    plain = jpeg(crop().convert("L"))
    settings = {"crop": WAYS["center"]}
    assert torch.equal(
        batch_of([plain], apply_exif_orientation=True, **settings), batch_of([plain], **settings)
    )
