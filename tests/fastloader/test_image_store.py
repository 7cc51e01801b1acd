"""Stores of encoded images: whole or none, read in place, with what they cost and save."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from image_samples import IMAGES, crop, jpeg, photograph, png, write_class_folders, write_files
from native_jpeg import needs_jpeg
from PIL import Image
from torchvision.datasets import ImageFolder

from fastloop import (
    FastLoader,
    Images,
    LongestSide,
    RandomResizedCrop,
    has_jpeg,
    open_store,
    write_store,
)
from fastloop.core.types import BadData, Unsupported

COUNT = 6
ENCODINGS = ["as_is", pytest.param("jpeg", marks=needs_jpeg)]
FILES = {f"{n}.jpg": jpeg(photograph().crop((n, 9, 190 + n, 140))) for n in range(COUNT - 1)}
FILES["5.png"] = png(crop())


@pytest.fixture
def paths(tmp_path) -> list[str]:
    root = write_files(tmp_path / "files", FILES)
    return [str(root / name) for name in FILES]


def pixels_of(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


def stored_bytes(images) -> list[bytes]:
    return [images[index].numpy().tobytes() for index in range(len(images))]


@pytest.mark.heavy
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", ["paths", "bytes", "a store"])
def test_store_has_the_pixels_of_its_files(tmp_path, paths, encoding, form):
    source = paths if form == "paths" else list(FILES.values())
    if form == "a store":
        source = open_store(write_store(paths, tmp_path / "other", images="as_is"))
    stored = write_store(source, tmp_path / "store", images=encoding)
    images = stored_bytes(open_store(stored))
    assert [pixels_of(image).tolist() for image in images] == [
        pixels_of(data).tolist() for data in FILES.values()
    ]
    changed = 0 if encoding == "as_is" else COUNT - 1
    assert (stored.num_images, stored.num_transcoded, stored.num_resized) == (COUNT, changed, 0)
    assert stored.bytes_before == sum(map(len, FILES.values()))
    assert stored.bytes_after == sum(map(len, images))
    assert sum(image == data for image, data in zip(images, FILES.values(), strict=True)) == (
        COUNT - changed
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("decoder", [pytest.param("native", marks=needs_jpeg), "pil"])
def test_crops_of_a_store_are_those_of_its_files(tmp_path, paths, encoding, decoder):
    images, labels = open_store(
        write_store((paths, list(range(COUNT))), tmp_path / "store", images=encoding)
    )
    settings = {"crop": RandomResizedCrop(40), "flip": 0.5, "decoder": decoder}
    column = Images(images, **settings)
    for source in (column, pickle.loads(pickle.dumps(column))):
        loader = FastLoader((source, labels), 4, shuffle=True, seed=3)
        reference = FastLoader((Images(paths, **settings), torch.arange(COUNT)), 4, True, seed=3)
        for (mine, number), (theirs, same) in zip(loader, reference, strict=True):
            assert torch.equal(mine, theirs)
            assert torch.equal(number, same)
    assert len(pickle.dumps(column)) < 5000


def test_whole_images_of_a_store(tmp_path):
    photos = [jpeg(crop(top=n)) for n in range(3)]
    images = open_store(write_store(photos, tmp_path / "store", images="as_is"))
    assert torch.equal(*(next(iter(FastLoader(Images(x), 3))) for x in (images, photos)))


def test_tree_and_image_folder_keep_their_labels(tmp_path, paths):
    masks = [png(crop(top=n)) for n in range(COUNT)]
    tree = {
        "photo": paths,
        "mask": masks,
        "more": (np.arange(COUNT * 2.0).reshape(COUNT, 2).T.copy().T,),
    }
    stored = write_store(tree, tmp_path / "tree", images="as_is")
    opened = open_store(stored)
    assert stored.num_images == 2 * COUNT
    assert stored_bytes(opened["mask"]) == masks
    assert np.array_equal(opened["more"][0], tree["more"][0])
    assert stored_bytes(opened["photo"]) == list(FILES.values())
    folder = ImageFolder(write_class_folders(tmp_path / "classes"))
    images, classes = open_store(write_store(folder, tmp_path / "folder", images="as_is"))
    assert stored_bytes(images) == [Path(path).read_bytes() for path, _ in folder.samples]
    assert classes.tolist() == folder.targets


def test_images_of_one_length_are_images_too(tmp_path):
    photos = [jpeg(crop())] * 3
    images = open_store(write_store(photos, tmp_path / "store", images="as_is"))
    assert torch.equal(
        next(iter(FastLoader(Images(images), 3))), next(iter(FastLoader(Images(photos), 3)))
    )


@needs_jpeg
def test_large_images_are_resized_and_others_transcoded(tmp_path):
    exif = IMAGES["JPEG with EXIF orientation"]
    tall = jpeg(photograph().crop((0, 0, 100, 400)).convert("L"), icc_profile=b"a profile")
    photos = [exif, tall, IMAGES["CMYK JPEG"], png(photograph()), FILES["0.jpg"][:-500]]
    stored = write_store(photos, tmp_path / "store", images=LongestSide(64, quality=80))
    images = stored_bytes(open_store(stored))
    assert (stored.num_transcoded, stored.num_resized) == (1, 1)
    assert images[2:] == photos[2:]
    assert np.array_equal(pixels_of(images[0]), pixels_of(exif))
    small = Image.open(io.BytesIO(images[1]))
    assert (small.size, small.mode, small.info["icc_profile"]) == ((16, 64), "L", b"a profile")
    expected = np.asarray(Image.open(io.BytesIO(tall)).resize((16, 64), Image.Resampling.LANCZOS))
    assert np.abs(np.asarray(small).astype(int) - expected).mean() < 4
    assert stored.bytes_after < stored.bytes_before


def test_costs_and_savings_are_told(tmp_path, paths):
    stored = write_store(paths, tmp_path / "store", images="as_is", num_workers=2)
    assert os.fspath(stored) == str(tmp_path / "store")
    assert stored.seconds > 0
    assert stored.cpu_seconds > 0
    assert isinstance(stored.saved_ms, float)
    assert f"{COUNT} images in" in str(stored)
    assert "paid back" in str(stored)
    epochs = stored.epochs_to_pay_back
    if stored.saved_ms > 0:
        saved_s = COUNT * stored.saved_ms / 1e3
        assert epochs == pytest.approx(stored.cpu_seconds / saved_s)
    else:
        assert epochs is None
    broken = write_store([b"no image"], tmp_path / "broken", images="as_is")
    assert (broken.saved_ms, broken.epochs_to_pay_back) == (None, None)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_equal_store_is_kept_and_another_refused(tmp_path, paths, encoding):
    root, source = tmp_path / "store", (paths, torch.arange(COUNT))
    stored = write_store(source, root, images=encoding)
    inode = (root / "0.npy").stat().st_ino
    assert write_store(source, root, images=encoding) == stored
    assert (root / "0.npy").stat().st_ino == inode
    others = [paths, (paths, torch.ones(COUNT)), (paths[::-1], torch.arange(COUNT))]
    for other in others:
        with pytest.raises(FileExistsError, match="a store of other data"):
            write_store(other, root, images=encoding)
    with pytest.raises(FileExistsError, match="a store of other data"):
        write_store(torch.arange(COUNT), root)
    write_store(others[2], root, images=encoding, overwrite=True)
    assert pixels_of(stored_bytes(open_store(root)[0])[0]).shape == (48, 64, 3)
    write_store(torch.arange(COUNT), root, overwrite=True)
    with pytest.raises(FileExistsError, match="a store of samples is here"):
        write_store(paths, root, images=encoding)


def test_folder_that_is_no_store_is_never_replaced(tmp_path, paths):
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="not a store"):
            write_store(paths, tmp_path / "files", images="as_is", overwrite=overwrite)
    assert len(list((tmp_path / "files").iterdir())) == COUNT


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (lambda paths: [*paths, "/no/such/file.jpg"], {}, FileNotFoundError, "/no/such/file.jpg"),
        (lambda paths: [b"x", b""], {}, BadData, "image 1: the file is empty"),
        (lambda paths: torch.arange(3), {}, ValueError, "allowed are lists of paths"),
        (lambda paths: [], {}, ValueError, "allowed are lists of paths"),
        (lambda paths: (paths, range(3)), {}, ValueError, "stores no range"),
        (lambda paths: (paths, torch.arange(3)), {}, ValueError, r"of one length, got \[3, 6\]"),
        (lambda paths: (paths, ["a"] * COUNT, [None] * COUNT), {}, ValueError, "allowed are"),
        (lambda paths: (paths, torch.ones(COUNT).bfloat16()), {}, Unsupported, "bfloat16"),
        (lambda paths: paths, {"images": "png"}, ValueError, "images='png': allowed are 'as_is'"),
        (
            lambda paths: paths,
            {"ragged": True},
            ValueError,
            "ragged, strings and allow_random are settings",
        ),
        (lambda paths: paths, {"num_workers": -1}, ValueError, "num_workers=-1: allowed are 0"),
    ],
)
def test_what_can_not_be_stored_is_named_and_nothing_written(
    tmp_path, paths, make, settings, error, message
):
    with pytest.raises(error, match=message) as caught:
        write_store(make(paths), tmp_path / "store", **{"images": "as_is"} | settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_path_of_a_store_is_no_list_of_images(tmp_path, paths):
    stored = write_store(paths, tmp_path / "store", images="as_is")
    for path in (stored, str(stored.root)):
        with pytest.raises(ValueError, match=r"got a path: open_store\('.*/store'\) opens"):
            Images(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LongestSide(0), "pixels=0: allowed are 1 to 65535"),
        (lambda: LongestSide(5, 101), "quality=101: allowed are 1 to 100"),
        (lambda: LongestSide(5.0), "pixels=5.0"),
    ],
)
def test_invalid_sides_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.skipif(has_jpeg(), reason="for installations without libjpeg-turbo")
@pytest.mark.parametrize("encoding", ["jpeg", LongestSide(99)])
def test_encodings_need_the_native_decoder(tmp_path, paths, encoding):
    with pytest.raises(ImportError, match="libjpeg62-turbo-dev"):
        write_store(paths, tmp_path / "store", images=encoding)
