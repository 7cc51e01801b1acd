"""`dataset=photos`: JPEG files of real photographs without a download, created on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import torchvision.transforms.v2  # noqa: F401 - or each worker would import it, to resize
from PIL import Image
from pydantic import Field, Strict
from sklearn.datasets import load_sample_image

from fastloop.core.atomic_files import write_beside
from fastloop.core.protocols import Decoder
from fastloop.core.types import option
from fastloop.data.dataset_files import create_once
from fastloop.data.image_files import LabelledImages, images_fingerprint, list_labelled_files
from fastloop.data.image_pixels import Size

PHOTOGRAPHS = ("china", "flower")
HEIGHT, WIDTH = 427, 640
"""Size of the photographs, in pixels."""
QUALITY = 90
"""Pillow's quality of the JPEG files."""
SEED = 0
"""The seed of the random crops."""
OWN_DATA = "to read your own images, set dataset=image_folder"
"""Advice in the error message that appears if dataset.root holds other files."""


@option
class Photos:
    """JPEG files of random crops of scikit-learn's two photographs, as a dataset that needs no
    download.

    A sample is (image, label): a float32 tensor (3, height, width) with values from 0 to 1, and the
    index of the photograph in PHOTOGRAPHS.
    """

    label: ClassVar[str] = "photos"
    """Name of the dataset in tables."""
    num_classes: ClassVar[int] = len(PHOTOGRAPHS)
    """Each photograph is a class."""
    uint8_scale: ClassVar[float] = 255.0
    """Each float is a uint8 divided by this number."""
    decodes: ClassVar[bool] = True
    """Each access to a sample decodes a file."""
    root: str
    """Path of the folder that contains `folder`."""
    count: Annotated[int, Field(ge=len(PHOTOGRAPHS))]
    """Number of files, in turn from one photograph and from the other."""
    crop: Annotated[
        tuple[Annotated[int, Field(ge=1, le=HEIGHT)], Annotated[int, Field(ge=1, le=WIDTH)]],
        Strict(False),
    ]
    """(height, width) of a file's image in pixels."""
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped when it is read; None:
    images keep the size of `crop`."""
    decoder: Decoder
    """Decodes the files."""

    @property
    def folder(self) -> Path:
        """The parent folder of the files, which has a folder per photograph."""
        height, width = self.crop
        return Path(self.root) / f"photos-{self.count}-{height}x{width}"

    def fetch(self) -> str:
        """A fingerprint of the files, the decoder and the size; missing files are created.

        Raises BadData if they can't be written.
        """
        create_once(self.folder, self._make, self.root, OWN_DATA)
        names = [name for name, _ in list_labelled_files(self.folder)]
        return images_fingerprint(self.folder, names, self.decoder, self.size, "photos")

    def files(self) -> list[Path]:
        """The folder of the files."""
        return [self.folder]

    def open(self) -> LabelledImages:
        """The samples."""
        files = list_labelled_files(self.folder)
        return LabelledImages(self.folder, files, self.decoder, self.size)

    def open_uint8(self) -> LabelledImages:
        """(uint8 (height, width, 3), int) samples."""
        files = list_labelled_files(self.folder)
        return LabelledImages(self.folder, files, self.decoder, self.size, as_uint8=True)

    def _make(self) -> None:
        photographs: list[Any] = [load_sample_image(f"{name}.jpg") for name in PHOTOGRAPHS]
        # A fixed seed, and not the trial's: the files are made once for all jobs.
        generator = torch.Generator().manual_seed(SEED)
        height, width = self.crop
        # The folder is renamed when all files are written, so it is complete or absent.
        with write_beside(self.folder) as folder:
            for name in PHOTOGRAPHS:
                (folder / name).mkdir(parents=True)
            for index in range(self.count):
                number = index % len(PHOTOGRAPHS)
                top = int(torch.randint(HEIGHT - height + 1, (), generator=generator))
                left = int(torch.randint(WIDTH - width + 1, (), generator=generator))
                crop = photographs[number][top : top + height, left : left + width]
                path = folder / PHOTOGRAPHS[number] / f"{index:06}.jpg"
                Image.fromarray(crop).save(path, quality=QUALITY)
