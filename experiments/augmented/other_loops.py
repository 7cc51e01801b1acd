"""Loops of libraries other than torch over augmented photographs, on two threads or workers. Each
is written as the library's documentation recommends, and draws its own crops, so that batches are
not comparable between libraries."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from experiments.augmented.loops import (
    BATCH_SIZE,
    MEAN,
    NUM_WORKERS,
    RATIO,
    SCALE,
    SIDE,
    STD,
    Loop,
    Photographs,
    make_v2_transform,
)
from experiments.augmented.photographs import QUALITY
from experiments.augmented.spdl_loops import make_spdl, make_spdl_by_batches

BYTE_MEAN, BYTE_STD = ([255 * value for value in values] for values in (MEAN, STD))


def make_torchcodec(paths: Sequence[str]) -> Iterable[Any]:
    """DataLoader with two workers that decode by torchcodec, the successor of torchvision's
    decoders."""
    from torchcodec.decoders import decode_image

    transform = make_v2_transform()
    torch.set_num_threads(1)
    return DataLoader(
        Photographs(paths, lambda path: transform(decode_image(path))),
        BATCH_SIZE,
        shuffle=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


@dataclass(frozen=True)
class Pixels:
    """The (pixels, number) pairs of the paths, which FFCV writes to its file."""

    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        with Image.open(self.paths[index]) as image:
            return np.asarray(image.convert("RGB")), index


def make_ffcv(paths: Sequence[str]) -> Iterable[Any]:
    """FFCV's Loader over a file in its own format, with JPEG images of the same quality."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    path = Path(paths[0]).with_name("photographs.beton")
    fields = {"image": RGBImageField("jpg", jpeg_quality=QUALITY), "label": IntField()}
    DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(Pixels(paths))
    mean, std = 255 * np.array(MEAN), 255 * np.array(STD)
    image = [
        RandomResizedCropRGBImageDecoder((SIDE, SIDE), SCALE, RATIO),
        RandomHorizontalFlip(),
        NormalizeImage(mean, std, np.float32),
        ToTensor(),
        ToTorchImage(channels_last=False),
    ]
    return Loader(
        str(path),
        batch_size=BATCH_SIZE,
        num_workers=NUM_WORKERS,
        os_cache=True,
        order=OrderOption.RANDOM,
        drop_last=False,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    )


def make_dali(paths: Sequence[str]) -> Iterable[Any]:
    """DALI's pipeline on the CPU, which decodes only the crop."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(batch_size=BATCH_SIZE, num_threads=NUM_WORKERS, device_id=None)
    def make_batches() -> Any:
        files, labels = fn.readers.file(
            files=list(paths), labels=list(range(len(paths))), random_shuffle=True, name="files"
        )
        area, ratio = list(SCALE), list(RATIO)
        images = fn.decoders.image_random_crop(
            files, device="cpu", random_area=area, random_aspect_ratio=ratio
        )
        images = fn.resize(images, size=[SIDE, SIDE])
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=BYTE_MEAN,
            std=BYTE_STD,
            mirror=fn.random.coin_flip(probability=0.5),
        )
        return images, labels

    batches = DALIGenericIterator(
        [make_batches()],
        ["image", "label"],
        reader_name="files",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=True,
    )
    return Loop(lambda: ((each[0]["image"], each[0]["label"]) for each in batches))


def make_turboloader(paths: Sequence[str]) -> Iterable[Any]:
    """turboloader over a tar file, with its fused augmentation and as many threads as cores. It
    decodes only the crop, and scales large crops down while it decodes them."""
    import turboloader as library

    file = Path(paths[0]).parent / f"photographs-{os.getpid()}.tar"
    with tarfile.open(file, "w") as archive:
        for number, path in enumerate(paths):
            archive.add(path, f"{number:06}.jpg")
    loader = library.DataLoader(
        str(file),
        batch_size=BATCH_SIZE,
        shuffle=True,
        image_size=SIDE,
        output_format="pytorch",
        transform=library.ImageNetNormalize(),
        antialias=True,
        train_aug=True,
    )
    numbers = count()

    def epoch() -> Iterator[Any]:
        loader.set_epoch(next(numbers))
        return ((torch.as_tensor(images), facts) for images, facts in loader)

    return Loop(epoch)


def is_installed(module: str) -> bool:
    """True if the module is installed; False also if the package that would contain it is
    missing."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


MAKERS: dict[str, tuple[str, Callable[[Sequence[str]], Iterable[Any]]]] = {
    "SPDL": ("spdl", make_spdl),
    "SPDL by batches": ("spdl", make_spdl_by_batches),
    "FFCV": ("ffcv", make_ffcv),
    "torchcodec": ("torchcodec", make_torchcodec),
    "DALI": ("nvidia.dali", make_dali),
    "turboloader": ("turboloader", make_turboloader),
}
OTHER_LOOPS = {name: make for name, (module, make) in MAKERS.items() if is_installed(module)}
"""The loops of libraries that are installed."""
