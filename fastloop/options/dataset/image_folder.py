"""`dataset=image_folder`: a folder of image files per class, the layout of torchvision's
ImageFolder."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torchvision.transforms.v2  # noqa: F401 - or each worker would import it, to resize

from fastloop.core.protocols import Decoder
from fastloop.core.types import option
from fastloop.data.dataset_files import own_path
from fastloop.data.image_files import (
    LabelledImages,
    class_folders,
    images_fingerprint,
    list_labelled_files,
)
from fastloop.data.image_pixels import Size


@option
class ImageFolder:
    """Your own images, a folder per class: (float32 (3, height, width) in 0..1, int) samples.

    Classes are numbered in the order of their folders' names.
    """

    label: ClassVar[str] = "image_folder"
    uint8_scale: ClassVar[float] = 255.0
    decodes: ClassVar[bool] = True
    root: str
    """Path of the folder that contains a folder of images for each class."""
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped; None: images keep
    their size."""
    decoder: Decoder
    """Decodes the image files."""

    @property
    def num_classes(self) -> int:
        """Number of class folders."""
        return len(class_folders(Path(self.root)))

    def fetch(self) -> str:
        """A fingerprint of the files, the decoder and the size; raises BadData without images."""
        root = self._folder()
        names = [name for name, _ in list_labelled_files(root)]
        return images_fingerprint(root, names, self.decoder, self.size, "image_folder")

    def files(self) -> list[Path]:
        """The class folders."""
        return [Path(self.root) / name for name in class_folders(Path(self.root))]

    def open(self) -> LabelledImages:
        """The samples."""
        return LabelledImages(*self._parts())

    def open_uint8(self) -> LabelledImages:
        """(uint8 (height, width, 3), int) samples."""
        return LabelledImages(*self._parts(), as_uint8=True)

    def _parts(self) -> tuple[Path, list[tuple[str, int]], Decoder, Size | None]:
        root = self._folder()
        return root, list_labelled_files(root), self.decoder, self.size

    def _folder(self) -> Path:
        content = "a folder of class folders with images, as cat/1.jpg"
        return own_path(self.root, "dataset=image_folder", content, "dataset.root")
