"""What the workloads of peers.md are made of that no option has: JPEG files as bytes of one size,
decoded and resized as fast as is known, and bytes that become normalized floats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt, Strict

from fastloop.datasets.photos import Photos
from fastloop.decoders.turbojpeg import Turbojpeg
from fastloop.files import fingerprint
from fastloop.image_files import labelled_files
from fastloop.optional import imported
from fastloop.types import Tree, option

Side = Annotated[tuple[PositiveInt, PositiveInt], Strict(False)]


@dataclass(frozen=True)
class Resized:
    """(uint8 (height, width, 3), int) samples: simplejpeg, then cv2's bilinear resize."""

    folder: Path
    files: Sequence[tuple[str, int]]
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.size, 3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = np.empty(self.shape, np.uint8)
        self.into(index, pixels)
        return torch.from_numpy(pixels), self.files[index][1]

    def into(self, index: int, pixels: np.ndarray) -> None:
        """The sample's pixels, written there."""
        simplejpeg, cv2 = libraries()
        decoded = simplejpeg.decode_jpeg((self.folder / self.files[index][0]).read_bytes())
        cv2.resize(decoded, self.size[::-1], dst=pixels, interpolation=cv2.INTER_LINEAR)


@option
class Jpegs:
    """dataset=photos without anything that fastloop does between file and sample."""

    label: ClassVar[str] = "jpegs"
    num_classes: ClassVar[int] = 2
    uint8_scale: ClassVar[None] = None
    root: str
    count: PositiveInt
    crop: Side
    size: Side

    @property
    def photos(self) -> Photos:
        return Photos(
            root=self.root, count=self.count, crop=self.crop, size=None, decoder=Turbojpeg()
        )

    def fetch(self) -> str:
        versions = [one.__version__ for one in libraries()]
        return fingerprint("jpegs", self.photos.fetch(), self.size, versions)

    def files(self) -> list[Path]:
        return self.photos.files()

    def open(self) -> Resized:
        return Resized(self.photos.folder, labelled_files(self.photos.folder), self.size)


@option
class ToFloats:
    """(uint8 / 255 - mean) / std as float32, by the three operations that took least."""

    where: Literal["worker", "device"] = "device"
    mean: PositiveFloat
    std: PositiveFloat

    def of_a_sample(self, sample: Tree) -> Tree:
        return self.of_a_batch(sample)

    def of_a_batch(self, batch: Tree) -> Tree:
        pixels, labels = batch
        floats = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
        floats.copy_(pixels).sub_(255 * self.mean).mul_(1 / (255 * self.std))
        return floats, labels


def libraries() -> tuple[Any, Any]:
    """simplejpeg and cv2, which does not start threads of its own."""
    simplejpeg = imported("simplejpeg", "dataset=peers/jpegs", "pip install simplejpeg")
    cv2 = imported("cv2", "dataset=peers/jpegs", "pip install opencv-python-headless")
    cv2.setNumThreads(0)
    return simplejpeg, cv2
