"""Other libraries' loops over augmented photographs, each as its documentation has it, on two
threads or workers. Each draws crops of its own: nothing compares them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch.utils.data import DataLoader

from experiments.augmented.loops import (
    BATCH_SIZE,
    MEAN,
    NUM_WORKERS,
    RATIO,
    SCALE,
    SIDE,
    STD,
    Photographs,
    Read,
    make_simplejpeg,
    make_v2_transform,
)

BYTE_MEAN, BYTE_STD = ([255 * value for value in values] for values in (MEAN, STD))
AHEAD = 4


@dataclass(frozen=True)
class Loop:
    """A loop whose every iteration is an epoch."""

    epoch: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.epoch()


def make_torchcodec(paths: Sequence[str]) -> Iterable[Any]:
    """DataLoader whose two workers decode by torchcodec, which replaces torchvision's decoders."""
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


def make_spdl_by_batches(paths: Sequence[str]) -> Iterable[Any]:
    """SPDL's pipeline, one for all epochs: two threads, each of which makes a whole batch with
    simplejpeg and OpenCV, as its own decoders are slower."""
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    requests: SimpleQueue[Any] = SimpleQueue()
    pipeline = (
        PipelineBuilder()
        .add_source(iter(requests.get, None))
        .pipe(partial(_make_batch, make_simplejpeg(), paths), concurrency=NUM_WORKERS)
        .add_sink(AHEAD)
        .build(num_threads=NUM_WORKERS, use_thread_output_queue=True)
    )
    pipeline.start()
    Finalize(
        None, _stop, (requests, pipeline), exitpriority=1
    )  # or its thread would keep the process

    def epoch() -> Iterator[Any]:
        batches = torch.randperm(len(paths)).split(BATCH_SIZE)
        for batch in batches:
            requests.put(batch)
        for _ in batches:
            yield pipeline.get_item()

    return Loop(epoch)


def _stop(requests: SimpleQueue[Any], pipeline: Any) -> None:
    requests.put(None)
    pipeline.stop()


def _make_batch(read: Read, paths: Sequence[str], indices: torch.Tensor) -> Any:
    return torch.stack([read(paths[index]) for index in indices.tolist()]), indices


def make_dali(paths: Sequence[str]) -> Iterable[Any]:
    """DALI's pipeline on the CPU, which decodes the crop alone."""
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
    """turboloader over a tar file, with its fused augmentation and as many threads as cores; it
    decodes the crop alone, and scales large ones while it decodes them."""
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
