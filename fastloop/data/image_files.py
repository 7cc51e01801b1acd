"""Image files: decoding, one common resize, conversion to floats, and folders of labelled files."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import PositiveInt, Strict

from fastloop.core.files import edge_digest, fingerprint
from fastloop.core.protocols import Collate, Dataset, Decoder, Samples, Uint8Images
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.core.types import BadData, Tree, Unsupported, name_of
from fastloop.fastloader.columns import decoders, image_headers
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.image_headers import Encoded, Encoding, encoding_of

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
READ_FILES = 64
"""Number of files with contents that count for a fingerprint."""

Size = Annotated[tuple[PositiveInt, PositiveInt], Strict(False)] | None
"""(height, width) to which every image is resized and cropped; None: original size."""


@dataclass(frozen=True)
class LabelledImages:
    """Samples (float32 (3, height, width) in 0..1, int), each decoded on access.

    as_uint8: deliver samples (uint8 array (height, width, 3), int) instead.
    """

    root: Path
    files: Sequence[tuple[str, int]]
    """Path relative to the root, and label."""
    decoder: Decoder
    size: Size
    as_uint8: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor | np.ndarray, int]:
        pixels = read_pixels(self.path(index), self.decoder, self.size)
        label = self.files[index][1]
        return (pixels if self.as_uint8 else to_floats(pixels)), label

    def path(self, index: int) -> Path:
        """The path of that sample's file."""
        return self.root / self.files[index][0]

    def read_file(self, index: int) -> bytes:
        """The file of that sample."""
        return self.path(index).read_bytes()

    def decode_file(self, data: bytes) -> np.ndarray:
        """Pixels of a file, (height, width, 3) uint8, resized; raises BadData."""
        return decode_pixels(data, self.decoder, self.size)

    @property
    def labels(self) -> torch.Tensor:
        """Labels of all samples, int64."""
        return torch.tensor([label for _, label in self.files], dtype=torch.int64)


@dataclass(frozen=True)
class ImageFileColumn:
    """Column of a FastLoader: the images, of one size, are decoded into the batch."""

    images: LabelledImages
    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.images)

    @property
    def spec(self) -> SampleSpec:
        """dtype and shape of an image."""
        assert self.images.size
        height, width = self.images.size
        if self.images.as_uint8:
            return SampleSpec(torch.uint8, (height, width, 3))
        return SampleSpec(torch.float32, (3, height, width))

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode these images, one by one, into `out`; raises BadData that names the file."""
        images, rows = self.images, self.spec.view_tensor(out)
        for index, row in zip(indices.tolist(), rows, strict=True):
            path = images.path(index)
            pixels = torch.from_numpy(read_pixels(path, images.decoder, images.size))
            if images.as_uint8:
                row.copy_(pixels)
            else:
                row.copy_(pixels.permute(2, 0, 1)).div_(255)


def uint8_samples(dataset: Dataset, collate: Collate) -> Samples:
    """Samples with images in uint8, for this collate; raises Unsupported if the dataset has
    none."""
    return check_uint8(dataset, collate).open_uint8()


def check_uint8(dataset: Dataset, collate: Collate) -> Uint8Images:
    """Return the dataset; raises Unsupported if it has no images in uint8 for the collate."""
    if not isinstance(dataset, Uint8Images):
        raise Unsupported(f"collate={name_of(collate)}: {dataset.label} has no uint8 images")
    return dataset


def read_pixels(path: Path, decoder: Decoder, size: Size) -> np.ndarray:
    """Pixels of an image file, (height, width, 3) uint8; raises BadData that names the file."""
    try:
        return decode_pixels(path.read_bytes(), decoder, size)
    except BadData as error:
        raise BadData(f"{path}: {error}") from error
    except OSError as error:
        raise BadData(f"{path}: {error.strerror or error}") from error


def decode_pixels(data: bytes, decoder: Decoder, size: Size) -> np.ndarray:
    """Pixels of the bytes of an image file, (height, width, 3) uint8; raises BadData."""
    pixels = decoder.decode(data)
    return resize_to_cover(pixels, size) if size else pixels


def class_folders(root: Path) -> list[str]:
    """Sorted names of the folders directly below the root, without hidden ones."""
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def list_labelled_files(root: Path) -> list[tuple[str, int]]:
    """Relative path and class number of each image file, sorted, without hidden files.

    Raises BadData if there is no image, or a class has none.
    """
    layout = "dataset.root is a folder of class folders with images, as cat/1.jpg"
    if not root.is_dir():
        raise BadData(f"{root}: no such folder; {layout}")
    classes = class_folders(root)
    if not classes:
        count = len(_images_below(root))
        content = f"{count} images, but no class folder" if count else "no class folder, no image"
        raise BadData(f"{root}: {content}; {layout}")
    files: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        paths = _images_below(root / name)
        if not paths:
            raise BadData(f"{root / name}: no {', '.join(SUFFIXES)} file in this class folder")
        files += [(str(path.relative_to(root)), label) for path in paths]
    return files


def images_fingerprint(
    root: Path, names: Iterable[str], decoder: Decoder, size: Size, *others: object
) -> str:
    """Fingerprint of image files: name, size, modification and status-change times of every file,
    the contents of 64 of them, and the decoder with its library and code.

    Raises Unsupported if the decoder's library is not installed.
    """
    # If every file were read, each command would take as long as an epoch.
    library, names = decoder.library(), list(names)
    stats = [(name, _stat_key(root / name)) for name in names]
    contents = [edge_digest(root / name) for name in names[:: -(-len(names) // READ_FILES) or 1]]
    modules = decoders, image_headers, sys.modules[__name__]
    code = source_fingerprint(decoder), *map(inspect.getsource, modules)
    return fingerprint(stats, contents, decoder, library, code, size, *others)


def _stat_key(path: Path) -> tuple[int, int, int]:
    # ctime as well, as in git's index: a program can set mtime, but not ctime. So a file is noticed
    # even if it replaces one of equal size and mtime.
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _images_below(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )


def image_and_label(name: str, pair: Tree) -> tuple[torch.Tensor, torch.Tensor | int]:
    """The (float image, label) of a sample; raises Unsupported for any other sample."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise Unsupported(f"transform={name}: it takes (image, label) samples")
    image, label = pair
    if not (isinstance(image, torch.Tensor) and image.is_floating_point() and image.ndim >= 3):
        raise Unsupported(f"transform={name}: it takes float images (channels, height, width)")
    return image, label


def pixels_of(data: bytes, decode: Callable[[Encoded, Encoding], np.ndarray]) -> np.ndarray:
    """(height, width, 3) uint8 RGB of an image file, contiguous and writable.

    decode: a function of fastloader.columns.decoders. Raises BadData for a file that is broken, or
    neither JPEG nor PNG nor WebP.
    """
    try:
        pixels = decode(data, encoding_of(data))
    except ValueError as error:
        raise BadData(str(error)) from error
    # torch.from_numpy warns of arrays that can't be written, which some libraries return
    return np.require(pixels, requirements=["C_CONTIGUOUS", "WRITEABLE"])


def covering_size(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image resized to just cover `size`, keeping its aspect ratio."""
    scale = max(size[0] / height, size[1] / width)
    return max(size[0], round(height * scale)), max(size[1], round(width * scale))


def center_crop_offset(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """First row and column of the center crop of that size."""
    return (height - size[0]) // 2, (width - size[1]) // 2


def resize_to_cover(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image to cover `size` and crop its center: (*size, 3) uint8."""
    # Always torchvision's bilinear resize with antialiasing. If each decoder's library resized its
    # own images, the samples would differ, because the resizes of these libraries do.
    from torchvision.transforms.v2 import functional

    height, width = covering_size(pixels.shape[0], pixels.shape[1], size)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    image = functional.resize(image, [height, width], antialias=True)
    top, left = center_crop_offset(height, width, size)
    image = image[:, top : top + size[0], left : left + size[1]]
    return image.permute(1, 2, 0).contiguous().numpy()


def to_floats(pixels: np.ndarray) -> torch.Tensor:
    """Convert (height, width, 3) uint8 to (3, height, width) float32 in 0..1, as ToTensor does."""
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)
