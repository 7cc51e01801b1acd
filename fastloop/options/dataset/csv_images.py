"""`dataset=csv_images`: images with landmarks, listed in a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torchvision.transforms.v2  # noqa: F401 - or each worker would import it, to resize

from fastloop.core.fingerprints import file_fingerprint
from fastloop.core.protocols import Decoder
from fastloop.core.types import BadData, option
from fastloop.data.dataset_files import own_path
from fastloop.data.image_files import images_fingerprint
from fastloop.data.image_pixels import (
    Size,
    center_crop_offset,
    covering_size,
    decode_and_resize,
    decode_file,
    resize_and_crop,
    to_floats,
)

COLUMNS = "image_name, part_0_x, part_0_y, part_1_x and so on"
"""The columns of the CSV file, for messages."""


@dataclass(frozen=True)
class LandmarkSamples:
    """{"image": float32 (3, height, width) in 0..1, "landmarks": float32 (parts, 2)} samples."""

    root: Path
    """Folder of the images."""
    names: Sequence[str]
    """For each sample, the path of its image in `root`."""
    landmarks: np.ndarray
    """(samples, parts, 2) float32: x and y in pixels of the image in its file, before resizing."""
    decoder: Decoder
    """Decodes the image files."""
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped; None: images keep
    their size."""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pixels = decode_file(self.root / self.names[index], self.decoder, None)
        points = self.landmarks[index]
        # Landmarks are in pixels of the stored image, so they are resized and cropped with it.
        if self.size:
            points = _resize_landmarks(points, pixels.shape[0], pixels.shape[1], self.size)
            pixels = resize_and_crop(pixels, self.size)
        return {"image": to_floats(pixels), "landmarks": torch.tensor(points)}

    def read_file(self, index: int) -> bytes:
        """The image file of that sample."""
        return (self.root / self.names[index]).read_bytes()

    def decode_file(self, data: bytes) -> np.ndarray:
        """Pixels of a file, (height, width, 3) uint8, resized; raises BadData."""
        return decode_and_resize(data, self.decoder, self.size)


@option
class CsvImages:
    """Your own images with landmarks from a CSV file; resizing an image also scales its landmarks.

    The format is that of PyTorch's tutorial on custom datasets (face landmarks).
    """

    label: ClassVar[str] = "csv_images"
    num_classes: ClassVar[None] = None
    # Landmarks are not pixels, so samples are compared by their exact bits.
    uint8_scale: ClassVar[None] = None
    decodes: ClassVar[bool] = True
    csv_file: str
    """Path of the CSV file; COLUMNS has its columns."""
    root: str | None
    """Path of the folder of the images; None: the folder of the CSV file."""
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped; None: images keep
    their size."""
    decoder: Decoder
    """Decodes the image files."""

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return Path(self.csv_file).parent if self.root is None else Path(self.root)

    def fetch(self) -> str:
        """A fingerprint of the CSV file, the images, the decoder and the size.

        Raises BadData for other columns than expected, for values that are not numbers, and for
        missing images.
        """
        names = [name for name, _ in _rows(self._table())]
        for name in names:
            if not (self.folder / name).is_file():
                raise BadData(f"{self.csv_file}: image not found: {self.folder / name}")
        table = file_fingerprint(self._table())
        return images_fingerprint(self.folder, names, self.decoder, self.size, "csv_images", table)

    def files(self) -> list[Path]:
        """The CSV file, and the images that it names."""
        rows = _rows(self._table())
        return [Path(self.csv_file), *(self.folder / name for name, _ in rows)]

    def open(self) -> LandmarkSamples:
        """The samples."""
        names, values = zip(*_rows(self._table()), strict=True)
        landmarks = np.array(values, np.float32).reshape(len(names), -1, 2)
        return LandmarkSamples(self.folder, names, landmarks, self.decoder, self.size)

    def _table(self) -> Path:
        content = f"a CSV file with the columns {COLUMNS}"
        return own_path(self.csv_file, "dataset=csv_images", content, "dataset.csv_file")


def _rows(path: Path) -> list[tuple[str, list[float]]]:
    """Image name and coordinates of each row; raises BadData."""
    try:
        # utf-8-sig: a file that a spreadsheet has saved may begin with a byte order mark.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            axes = [f"part_{part}_{axis}" for part in range(len(header) // 2) for axis in "xy"]
            # Spaces after the commas are common, and do no harm.
            if not axes or [name.strip() for name in header] != ["image_name", *axes]:
                raise BadData(f"{path}: columns are {', '.join(header)[:80]}; expected: {COLUMNS}")
            rows = [_row(f"{path}, line {reader.line_num}", row, axes) for row in reader if row]
    except OSError as error:
        raise BadData(
            f"{path}: {error.strerror}; dataset.csv_file has columns {COLUMNS}"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{path}: not a CSV file: {error}") from error
    if not rows:
        raise BadData(f"{path}: no rows below the header")
    return rows


def _row(location: str, row: list[str], axes: list[str]) -> tuple[str, list[float]]:
    name, *values = row
    if len(values) != len(axes):
        raise BadData(f"{location}: {len(values)} numbers instead of {len(axes)}")
    try:
        return name, [float(value) for value in values]
    except ValueError as error:
        raise BadData(f"{location}: {error}") from error


def _resize_landmarks(
    points: np.ndarray, height: int, width: int, size: tuple[int, int]
) -> np.ndarray:
    """(parts, 2) float32: the landmarks' positions in the image after `resize_and_crop`."""
    covered = covering_size(height, width, size)
    top, left = center_crop_offset(*covered, size)
    resized = points * (covered[1] / width, covered[0] / height) - (left, top)
    return resized.astype(np.float32)
