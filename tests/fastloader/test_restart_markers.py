"""JPEGs with restart markers: the same pixels in every reader, and crops of the parts they need."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import torch
from image_samples import IMAGES, add_thumbnail, crop, jpeg, photograph, png, quarter_turn
from native_jpeg import needs_jpeg
from PIL import Image

from fastloop import CenterCrop, Images, RandomResizedCrop
from fastloop.fastloader.columns.decoders import load_jpeg

pytestmark = needs_jpeg
KINDS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "grey": {},
    "RGB": {"keep_rgb": True},
    "progressive": {"progressive": True},
    "markers of its own": {"restart_marker_blocks": 3},
}
WAYS = (
    RandomResizedCrop(40),
    RandomResizedCrop((30, 50), (0.001, 0.05), (0.1, 9.0)),
    CenterCrop(9, 9),
)


def photo(kind: str, width: int, height: int, left: int = 40, top: int = 20) -> bytes:
    image = photograph().crop((left, top, left + width, top + height))
    return jpeg(image.convert("L") if kind == "grey" else image, **KINDS[kind])


def transcode(data: bytes) -> bytes | None:
    return load_jpeg().transcode(data)


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def interval_of(data: bytes) -> int:
    """MCUs between restart markers; 0: there are none."""
    place = data.find(b"\xff\xdd\x00\x04")
    return struct.unpack(">H", data[place + 4 : place + 6])[0] if place > 0 else 0


def make_crops(images: list[bytes], way, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(1 for each sample that is made natively, the samples)."""
    jpeg_module = load_jpeg()
    keys = np.random.default_rng(seed).integers(0, 2**63, len(images)).astype(np.uint64)
    out = np.zeros((len(images), 3, *way.height_width), np.uint8)
    formats = (0, False, (1.0,) * 3, (0.0,) * 3)
    states = jpeg_module.make_samples(tuple(images), False, keys, (*way.native, 0.5), formats, out)
    return np.frombuffer(states, np.uint8), out


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_and_crops_stay_the_same(kind):
    rng = np.random.default_rng(0)
    for _ in range(25):
        width, height, left, top = rng.integers((1, 1, 0, 0), (260, 200, 90, 90)).tolist()
        data = photo(kind, width, height, left, top)
        transcoded = transcode(data)
        assert np.array_equal(pixels_of(transcoded), pixels_of(data))
        assert interval_of(transcoded) > 0
        for number, way in enumerate(WAYS):
            (made, cut), (same, reference) = (
                make_crops([each] * 8, way, number) for each in (transcoded, data)
            )
            assert made.all()
            assert same.all()
            assert np.array_equal(cut, reference)


def test_it_is_transcoded_to_itself():
    transcoded = transcode(photo("4:2:0", 250, 180))
    assert transcode(transcoded) == transcoded


@pytest.mark.parametrize(
    ("kind", "width", "interval"),
    [
        ("4:2:0", 500, 2),  # 32 MCUs of 16 pixels
        ("4:2:0", 496, 1),  # 31
        ("4:2:0", 528, 3),  # 33
        ("4:4:4", 500, 3),  # 63 of 8 pixels
        ("grey", 500, 7),
        ("grey", 376, 47),  # 47: parts would be too small
    ],
)
def test_rows_are_divided_evenly_into_segments(kind, width, interval):
    assert interval_of(transcode(photo(kind, width, 40))) == interval


@pytest.mark.parametrize("name", ["JPEG with a thumbnail", "JPEG with EXIF orientation"])
def test_headers_are_kept(name):
    data = IMAGES[name]
    before, after = (Image.open(io.BytesIO(each)) for each in (data, transcode(data)))
    assert dict(before.getexif()) == dict(after.getexif())
    assert sorted(before.applist) == sorted(after.applist)
    profile = jpeg(crop(), icc_profile=b"a profile", comment=b"a comment", exif=quarter_turn())
    info = Image.open(io.BytesIO(transcode(profile))).info
    assert (info["icc_profile"], info["comment"]) == (b"a profile", b"a comment")


def test_pictures_behind_a_picture_are_left_out():
    data = add_thumbnail(jpeg(crop()))
    multi = data[:2] + b"\xff\xe2\x00\x08MPF\0\1\2" + data[2:] + jpeg(crop())
    transcoded = transcode(multi)
    assert b"MPF" not in transcoded
    assert transcoded.count(b"\xff\xd9") == 2  # the thumbnail's, and its own
    assert np.array_equal(pixels_of(transcoded), pixels_of(data))


def cut_scans(data: bytes, scans: int) -> bytes:
    """A progressive JPEG of its first scans alone."""
    places = [k for k in range(len(data)) if data[k : k + 2] == b"\xff\xda"]
    return data[: places[scans]] + b"\xff\xd9"


@pytest.mark.parametrize(
    "data",
    [
        IMAGES["CMYK JPEG"],
        png(crop()),
        b"",
        b"\xff\xd8\xff",
        jpeg(crop())[:-40],
        cut_scans(IMAGES["progressive JPEG"], 3),
    ],
    ids=["CMYK", "PNG", "empty", "a start", "cut off", "progressive without its last scans"],
)
def test_what_can_not_be_kept_exactly_is_left(data):
    assert transcode(data) is None


def scan_of(data: bytes) -> int:
    """The place of the scan's first byte."""
    place = data.rindex(b"\xff\xda")
    return place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def test_crops_read_the_segments_that_they_need():
    data = transcode(photo("4:2:0", 500, 375))
    way = RandomResizedCrop(40, (0.02, 0.1))
    made, reference = make_crops([data] * 40, way)
    assert made.all()
    first = scan_of(data)
    end = data.index(b"\xff\xd0", first)  # of the segment in the corner
    damaged = data[:first] + b"\x55" * (end - first) + data[end:]
    made, cuts = make_crops([damaged] * 40, way)
    same = [np.array_equal(*pair) for pair in zip(cuts, reference, strict=True)]
    assert sum(same) >= 30  # the corner's segment is in few of these crops
    assert not np.array_equal(pixels_of(damaged), pixels_of(data))


@pytest.mark.parametrize("what", ["missing", "doubled", "in another order", "cut off"])
def test_wrong_markers_are_an_error(what):
    data = transcode(photo("4:2:0", 250, 180))
    first, second = data.index(b"\xff\xd0"), data.index(b"\xff\xd1")
    broken = {
        "missing": data[:first] + data[second:],
        "doubled": data[:second] + data[first:],
        "in another order": data[:first] + b"\xff\xd3" + data[first + 2 :],
        "cut off": data[: len(data) // 2],
    }[what]
    made, _ = make_crops([broken] * 4, CenterCrop(40, 40))
    assert not made.any()


def test_loader_delivers_the_same_of_both():
    photos = [photo("4:2:0", 180 + n, 150) for n in range(6)]
    indices, samples = np.arange(6), []
    for images in (photos, [transcode(data) for data in photos]):
        column = Images(images, crop=RandomResizedCrop(32), dtype=torch.float32).with_seed(4)
        out = np.empty((6, column.spec.nbytes), np.uint8)
        column.fill(indices, out)
        samples.append(out)
    assert np.array_equal(*samples)
