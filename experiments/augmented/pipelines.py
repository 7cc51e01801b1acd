"""The loops of other libraries than torch over the same photographs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from experiments.augmented.loops import (
    BATCH_SIZE,
    MEAN,
    NUM_WORKERS,
    RATIO,
    SCALE,
    SIDE,
    STD,
    make_simplejpeg,
)
from experiments.augmented.photographs import QUALITY
from experiments.augmented.rivals import (
    make_dali,
    make_spdl_by_batches,
    make_torchcodec,
    make_turboloader,
)


@dataclass(frozen=True)
class SpdlLoop:
    """SPDL's pipeline of threads, whose step decodes by simplejpeg and resizes by OpenCV."""

    paths: Sequence[str]
    read: Callable[[str], torch.Tensor]

    def __iter__(self) -> Iterator[torch.Tensor]:
        from spdl.pipeline import PipelineBuilder

        order = torch.randperm(len(self.paths)).tolist()
        builder = PipelineBuilder().add_source(self.paths[k] for k in order)
        builder = builder.pipe(self.read, concurrency=NUM_WORKERS)
        builder = builder.aggregate(BATCH_SIZE).pipe(torch.stack).add_sink(NUM_WORKERS)
        pipeline = builder.build(num_threads=NUM_WORKERS)
        with pipeline.auto_stop():
            yield from pipeline


def make_spdl(paths: Sequence[str]) -> Iterable[Any]:
    """SPDL with as many threads as the others have."""
    torch.set_num_threads(1)
    return SpdlLoop(paths, make_simplejpeg())


@dataclass(frozen=True)
class Pixels:
    """(pixels, number) of each path, which FFCV writes."""

    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        with Image.open(self.paths[index]) as image:
            return np.asarray(image.convert("RGB")), index


def make_ffcv(paths: Sequence[str]) -> Iterable[Any]:
    """FFCV's Loader over its own file of JPEG images of the same quality."""
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


def is_installed(module: str) -> bool:
    """False also where the package that would contain the module is missing."""
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
PIPELINES = {name: make for name, (module, make) in MAKERS.items() if is_installed(module)}
"""Those that are installed."""
