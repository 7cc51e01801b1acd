"""Files as users have them: Parquet, Arrow, tar and Zarr, written by their own libraries."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from image_samples import PHOTOGRAPHS
from options import require_library
from PIL import Image

COUNT = 37
IMAGES = np.random.default_rng(0).random((COUNT, 4, 3), np.float32)
LABELS = np.arange(COUNT) % 5


def write_parquet(folder: Path) -> Path:
    """Two files of an image column, two of numbers, one of text, and labels; groups of ten rows."""
    pyarrow = require_library("pyarrow")
    parquet = require_library("pyarrow.parquet")
    path = folder / "parquet"
    path.mkdir()
    for number, rows in enumerate([slice(0, 25), slice(25, COUNT)]):
        count = len(LABELS[rows])
        inner = pyarrow.FixedSizeListArray.from_arrays(IMAGES[rows].reshape(-1), 3)
        columns = {
            "image": pyarrow.FixedSizeListArray.from_arrays(inner, 4),
            "weight": IMAGES[rows, 0, 0].astype(np.float64),
            "flag": LABELS[rows] > 2,
            "label": LABELS[rows].astype(np.int32),
            "name": [f"row {row}" for row in range(count)],
            "words": [list(range(label)) for label in LABELS[rows].tolist()],
            "holes": [None, *range(count - 1)],
        }
        parquet.write_table(pyarrow.table(columns), path / f"{number}.parquet", row_group_size=10)
    return path


def write_numbers(folder: Path) -> Path:
    """One Parquet file of numbers alone."""
    pyarrow = require_library("pyarrow")
    parquet = require_library("pyarrow.parquet")
    path = folder / "numbers.parquet"
    columns = {"weight": IMAGES[:, 0, 0], "label": LABELS}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=10)
    return path


def write_hf_arrow(folder: Path) -> Path:
    """A Dataset of images and labels, as save_to_disk writes it."""
    datasets = require_library("datasets")
    features = {
        "image": datasets.Array2D((4, 3), "float32"),
        "label": datasets.ClassLabel(names=[*"abcde"]),
    }
    dataset = datasets.Dataset.from_dict(
        {"image": IMAGES, "label": LABELS}, features=datasets.Features(features)
    )
    dataset.save_to_disk(folder / "arrow")
    return folder / "arrow"


def write_zarr(folder: Path) -> Path:
    """A group of images and labels in chunks of eight rows."""
    zarr = require_library("zarr")
    path = folder / "group.zarr"
    group = zarr.create_group(str(path))
    group.create_array("image", data=IMAGES, chunks=(8, 4, 3))
    group.create_array("label", data=LABELS.astype(np.int16), chunks=(8,))
    require_library("zarr.core.sync").cleanup_resources()
    return path


def jpeg(index: int) -> bytes:
    """A JPEG file of 32 x 24 pixels."""
    file = io.BytesIO()
    with Image.open(PHOTOGRAPHS / "china.jpg") as image:
        image.crop((index, index, index + 32, index + 24)).save(file, "jpeg")
    return file.getvalue()


def write_webdataset(folder: Path) -> Path:
    """Three tar files of JPEG files, classes, arrays and texts."""
    path = folder / "tars"
    path.mkdir()
    for number in range(3):
        with tarfile.open(path / f"{number}.tar", "w") as archive:
            for index in range(number, COUNT, 3):
                array = io.BytesIO()
                np.save(array, IMAGES[index])
                parts = {"jpg": jpeg(index), "cls": b"%d" % LABELS[index]}
                parts |= {"input.npy": array.getvalue(), "txt": b"words"}
                for extension, data in parts.items():
                    info = tarfile.TarInfo(f"train/{index:03d}.{extension}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    return path


WRITERS = {
    "parquet": write_numbers,
    "hf_arrow": write_hf_arrow,
    "zarr": write_zarr,
    "webdataset": write_webdataset,
}
"""Dataset option -> a function that writes files which its defaults read, and returns the path."""
