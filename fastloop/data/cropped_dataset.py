"""Datasets of crops of image files. The box and flip of a random crop depend only on the seed, the
epoch and the sample's index."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from fastloop.core import seeds
from fastloop.core.fingerprints import fingerprint
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Dataset, Decoder, Order, Transform
from fastloop.core.seeds import sample_key
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.core.types import BadData
from fastloop.data import cropping as cropping_module
from fastloop.data.cropping import Cropping, CropTransform
from fastloop.data.image_files import LabelledImages
from fastloop.data.image_pixels import Size
from fastloop.fastloader.columns import crops
from fastloop.fastloader.columns.crops import draw_cut

CODE = crops, seeds, cropping_module, sys.modules[__name__]
"""Modules with code that determines a sample: this code is part of the dataset's fingerprint."""


@runtime_checkable
class CroppableDataset(Protocol):
    """A dataset of labelled image files."""

    size: Size | None
    decoder: Decoder

    def files(self) -> list[Path]:
        """The image files and folders, see HasFiles."""
        ...

    def open_uint8(self) -> LabelledImages:
        """(uint8 (height, width, 3), int) samples."""
        ...


@dataclass(frozen=True)
class CroppedSamples:
    """Samples (float32 (3, height, width), int) of all epochs, with consecutive numbers.

    Sample epoch * len + index is the crop of image `index` in that epoch. A worker receives only
    this number, and derives the epoch from it.
    """

    images: LabelledImages
    cropping: Cropping
    seed: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        epoch, index = divmod(number, len(self.images))
        return self.make(index, sample_key(self.seed, epoch, index))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        # Python's iteration by __getitem__ would never end, because every number is a sample.
        return map(self.__getitem__, range(len(self)))

    def make(self, index: int, key: int) -> tuple[torch.Tensor, int]:
        """The sample that the key draws of an image; raises BadData that names the file."""
        pixels: Any
        pixels, label = self.images[index]
        cut = draw_cut(self.cropping.crop, self.cropping.flip, key, *pixels.shape[:2])
        try:
            return self.cropping.make_sample(pixels, cut), label
        except BadData as error:
            raise BadData(f"{self.images.path(index)}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class CroppedDataset:
    """The crops of a dataset's images."""

    dataset: Any
    """The dataset of the images, at their original sizes."""
    cropping: Cropping
    seed: int = 0
    """The seed of the random boxes and flips."""

    uint8_scale: ClassVar[None] = None
    decodes: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """The label of the dataset."""
        return self.dataset.label

    @property
    def num_classes(self) -> int | None:
        """The number of classes of the dataset."""
        return self.dataset.num_classes

    @property
    def decoder(self) -> Decoder:
        """The decoder of the dataset."""
        return self.dataset.decoder

    def fetch(self) -> str:
        """A fingerprint of the images and the crops; raises BadData as the dataset does."""
        code = source_fingerprint(self.dataset), *map(inspect.getsource, CODE)
        return fingerprint(self.dataset.fetch(), self.cropping, code)

    def files(self) -> list[Path]:
        """The files of the dataset."""
        return self.dataset.files()

    def open(self) -> CroppedSamples:
        """The crops."""
        return CroppedSamples(self.dataset.open_uint8(), self.cropping, self.seed)


@dataclass(frozen=True, kw_only=True)
class NumberedOrder:
    """An order of the numbers of samples, which count on from epoch to epoch."""

    order: Order
    complete: ClassVar[bool] = False

    def length(self, num_samples: int) -> int:
        """Number of indices in an epoch."""
        return self.order.length(num_samples)

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """The int64 index + epoch * num_samples of each sample, piece by piece."""
        pieces = self.order.pieces(num_samples, seed, epoch)
        return (piece + epoch * num_samples for piece in pieces)


def crop_dataset(dataset: Dataset, transform: Transform) -> Dataset:
    """The dataset of the crops, for a transform that crops image files; else the dataset itself."""
    if not (isinstance(transform, CropTransform) and isinstance(dataset, CroppableDataset)):
        return dataset
    crops: Any = CroppedDataset(dataset=dataset, cropping=transform.cropping)
    return crops


def crops_at_random(dataset: Dataset) -> bool:
    """True for a dataset of random crops: a store would repeat one crop of each image."""
    return isinstance(dataset, CroppedDataset) and dataset.cropping.is_random


def number_samples(prepared: PreparedData, plan: Plan) -> tuple[PreparedData, Plan]:
    """The data and the plan of a loader that is to deliver new random crops in each epoch.

    The crops have the plan's seed and are read by their numbers. The data and the plan are
    unchanged for other samples.
    """
    dataset = prepared.dataset
    if not isinstance(dataset, CroppedDataset) or not dataset.cropping.is_random:
        return prepared, plan
    prepared = replace(prepared, dataset=replace(dataset, seed=plan.seed))
    return prepared, replace(plan, order=NumberedOrder(order=plan.order))


def plan_of_indices(plan: Plan) -> Plan:
    """The plan with indices in place of the samples' numbers, for a loader that passes the epoch to
    its samples itself."""
    order = plan.order
    return replace(plan, order=order.order) if isinstance(order, NumberedOrder) else plan
