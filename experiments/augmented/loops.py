"""Loops over augmented photographs: RandomResizedCrop(224), flip, normalized float32 CHW."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH_SIZE, NUM_WORKERS, SIDE = 60, 2, 224
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)

Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Loop:
    """A loop: each iteration over it is an epoch."""

    epoch: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.epoch()


@dataclass(frozen=True)
class Photographs(Dataset):
    """(image, label) of each path."""

    paths: Sequence[str]
    read: Read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.read(self.paths[index]), index


def make_pil() -> Read:
    """The usual reader: Pillow decodes and resizes, version 1 of torchvision's transforms does the
    rest."""
    from PIL import Image
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE, SCALE, RATIO),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def read(path: str) -> torch.Tensor:
        with Image.open(path) as image:
            return transform(image.convert("RGB"))

    return read


def make_v2_transform() -> Callable[[torch.Tensor], torch.Tensor]:
    """A reader with version 2 of torchvision's transforms, applied to uint8 tensors."""
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, SCALE, RATIO, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def make_v2() -> Read:
    """The fastest reader with torchvision alone: its own decoder, and version 2 of its
    transforms."""
    from torchvision.io import ImageReadMode, decode_image

    transform = make_v2_transform()

    def read(path: str) -> torch.Tensor:
        return transform(decode_image(path, ImageReadMode.RGB))

    return read


def make_simplejpeg() -> Read:
    """A reader in which simplejpeg decodes, and OpenCV resizes by area, as FFCV does."""
    import cv2
    import simplejpeg
    from torchvision.transforms import RandomResizedCrop, v2

    cv2.setNumThreads(0)
    scale = np.array([1 / (255 * s) for s in STD], np.float32)
    shift = np.array([m / s for m, s in zip(MEAN, STD, strict=True)], np.float32)

    def read(path: str) -> torch.Tensor:
        with open(path, "rb") as file:
            pixels = simplejpeg.decode_jpeg(file.read())
        shape = torch.empty(3, *pixels.shape[:2], device="meta")
        top, left, height, width = RandomResizedCrop.get_params(shape, list(SCALE), list(RATIO))
        part = pixels[top : top + height, left : left + width]
        part = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        image = torch.from_numpy((part * scale - shift).transpose(2, 0, 1))
        return v2.functional.horizontal_flip(image) if torch.rand(()) < 0.5 else image

    return read


READERS = {"PIL": make_pil, "torchvision v2": make_v2, "simplejpeg + cv2": make_simplejpeg}


def dataloader(paths: Sequence[str], reader: str) -> Iterable[Any]:
    """torch's DataLoader with two workers that live through all epochs."""
    torch.set_num_threads(1)
    return DataLoader(
        Photographs(paths, READERS[reader]()),
        BATCH_SIZE,
        shuffle=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


def fastloader(encoded: Any) -> Iterable[Any]:
    """FastLoader over a column of crops, made from paths or from a store's images."""
    from fastloop import FastLoader, Images, RandomResizedCrop

    crop = RandomResizedCrop(SIDE, SCALE, RATIO)
    images = Images(encoded, crop=crop, flip=0.5, normalize=(MEAN, STD), decoder="native")
    labels = torch.arange(len(images))
    return FastLoader((images, labels), BATCH_SIZE, shuffle=True, seed=0, num_threads=NUM_WORKERS)


def make_loop(name: str, source: Sequence[str] | str) -> Iterable[Any]:
    """The loop of this name: FastLoader over paths or a store, or DataLoader's workers with a
    reader."""
    from fastloop import open_store

    if name in READERS:
        return dataloader(source, name)
    return fastloader(open_store(source) if isinstance(source, str) else source)
