"""The data of the workload `jpeg`: JPEG files in memory, decoded and resized to one size by the
fastest known means."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import PositiveInt, Strict

from fastloop.core.fingerprints import fingerprint
from fastloop.core.optional_libraries import Library
from fastloop.core.types import option
from fastloop.data.image_files import list_labelled_files
from fastloop.options.dataset.photos import Photos
from fastloop.options.decoder.turbojpeg import TurbojpegDecoder

Side = Annotated[tuple[PositiveInt, PositiveInt], Strict(False)]


@dataclass(frozen=True)
class JpegSamples:
    """Samples (uint8 (height, width, 3), int), decoded by simplejpeg and resized by cv2,
    bilinearly."""

    folder: Path
    files: Sequence[tuple[str, int]]
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a sample's pixels."""
        return (*self.size, 3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = np.empty(self.shape, np.uint8)
        self.into(index, pixels)
        return torch.from_numpy(pixels), self.files[index][1]

    def into(self, index: int, pixels: np.ndarray) -> None:
        """Write the sample's pixels to the given array."""
        self._decode_into(self.read_file(index), pixels)

    def read_file(self, index: int) -> bytes:
        """The encoded file of a sample."""
        return (self.folder / self.files[index][0]).read_bytes()

    def decode_file(self, data: bytes) -> np.ndarray:
        """The pixels of a file."""
        pixels = np.empty(self.shape, np.uint8)
        self._decode_into(data, pixels)
        return pixels

    def _decode_into(self, data: bytes, pixels: np.ndarray) -> None:
        simplejpeg, cv2 = libraries()
        image = simplejpeg.decode_jpeg(data)
        cv2.resize(image, self.size[::-1], dst=pixels, interpolation=cv2.INTER_LINEAR)


@option
class Jpegs:
    """The files of dataset=photos, without fastloop's own work between file and sample."""

    label: ClassVar[str] = "jpegs"
    num_classes: ClassVar[int] = 2
    uint8_scale: ClassVar[None] = None
    decodes: ClassVar[bool] = True
    root: str
    count: PositiveInt
    crop: Side
    size: Side

    @property
    def photos(self) -> Photos:
        return Photos(
            root=self.root, count=self.count, crop=self.crop, size=None, decoder=TurbojpegDecoder()
        )

    def fetch(self) -> str:
        versions = [library.__version__ for library in libraries()]
        return fingerprint("jpegs", self.photos.fetch(), self.size, versions)

    def files(self) -> list[Path]:
        return self.photos.files()

    def open(self) -> JpegSamples:
        return JpegSamples(self.photos.folder, list_labelled_files(self.photos.folder), self.size)


def libraries() -> tuple[Any, Any]:
    """The modules simplejpeg and cv2, the latter set to use no threads."""
    simplejpeg = Library("simplejpeg", "dataset=peers/jpegs", "pip install simplejpeg").load()
    cv2 = Library("cv2", "dataset=peers/jpegs", "pip install opencv-python-headless").load()
    cv2.setNumThreads(0)
    return simplejpeg, cv2
