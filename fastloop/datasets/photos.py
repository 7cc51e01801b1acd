"""`dataset=photos`: JPEG files of real content without a download, made on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from PIL import Image
from pydantic import Field, Strict
from sklearn.datasets import load_sample_image

from fastloop.files import written_beside
from fastloop.image_files import LabelledImages, Size, images_fingerprint, labelled_files
from fastloop.made import made_once
from fastloop.protocols import Decoder
from fastloop.types import option

PHOTOGRAPHS = ("china", "flower")
HEIGHT, WIDTH = 427, 640
QUALITY = 90
SEED = 0


@option
class Photos:
    """Random crops of scikit-learn's two photographs; the label says of which.

    (float32 (3, height, width) in 0..1, int) samples.
    """

    label: ClassVar[str] = "photos"
    num_classes: ClassVar[int] = len(PHOTOGRAPHS)
    uint8_scale: ClassVar[float] = 255.0
    root: str
    count: Annotated[int, Field(ge=len(PHOTOGRAPHS))]
    crop: Annotated[
        tuple[Annotated[int, Field(ge=1, le=HEIGHT)], Annotated[int, Field(ge=1, le=WIDTH)]],
        Strict(False),
    ]
    size: Size
    decoder: Decoder

    @property
    def folder(self) -> Path:
        """Where the files are, in a folder a photograph."""
        height, width = self.crop
        return Path(self.root) / f"photos-{self.count}-{height}x{width}"

    def fetch(self) -> str:
        """A fingerprint of the files, the decoder and the size; the files are made where missing.

        Raises BadData where they can't be written.
        """
        made_once(self.folder, self._make, self.root)
        names = [name for name, _ in labelled_files(self.folder)]
        return images_fingerprint(self.folder, names, self.decoder, self.size, "photos")

    def files(self) -> list[Path]:
        """The folder of the files."""
        return [self.folder]

    def open(self) -> LabelledImages:
        """The samples."""
        files = labelled_files(self.folder)
        return LabelledImages(self.folder, files, self.decoder, self.size)

    def open_uint8(self) -> LabelledImages:
        """(uint8 (height, width, 3), int) samples."""
        files = labelled_files(self.folder)
        return LabelledImages(self.folder, files, self.decoder, self.size, as_uint8=True)

    def _make(self) -> None:
        photographs: list[Any] = [load_sample_image(f"{name}.jpg") for name in PHOTOGRAPHS]
        generator = torch.Generator().manual_seed(SEED)
        height, width = self.crop
        with written_beside(self.folder) as beside:
            for name in PHOTOGRAPHS:
                (beside / name).mkdir(parents=True)
            for index in range(self.count):
                which = index % len(PHOTOGRAPHS)
                top = int(torch.randint(HEIGHT - height + 1, (), generator=generator))
                left = int(torch.randint(WIDTH - width + 1, (), generator=generator))
                crop = photographs[which][top : top + height, left : left + width]
                path = beside / PHOTOGRAPHS[which] / f"{index:06}.jpg"
                Image.fromarray(crop).save(path, quality=QUALITY)
