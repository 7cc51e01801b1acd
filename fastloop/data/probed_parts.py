"""Samples and transforms that record their calls for a probe: reading files, and transforming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fastloop.core.plan import LoaderProbe
from fastloop.core.protocols import Samples, Transform
from fastloop.core.types import Tree
from fastloop.data.image_files import LabelledImages
from fastloop.data.image_pixels import to_floats


@dataclass(frozen=True)
class ReadImages:
    """The samples of labelled images; the function that reads their files records each call."""

    images: LabelledImages
    read_file: Callable[[int], bytes]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor | np.ndarray, int]:
        pixels = self.images.decode_file(self.read_file(index))
        _, label = self.images.files[index]
        return (pixels if self.images.as_uint8 else to_floats(pixels)), label


@dataclass
class RecordedTransform:
    """A transform with another function for `transform_sample`, which records each call."""

    transform: Transform
    where: Literal["worker", "device"]
    call: Callable[[Tree], Tree]

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample, transformed."""
        return self.call(sample)

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch, transformed."""
        return self.transform.transform_batch(batch)


def probe_reads(samples: Samples, probe: LoaderProbe | None) -> Samples:
    """The samples, with the reading of files recorded if they are image files."""
    if probe is None or not isinstance(samples, LabelledImages):
        return samples
    return ReadImages(samples, probe.wrap_read(samples.read_file))


def probe_transform(transform: Transform, probe: LoaderProbe | None) -> Transform:
    """The transform, with its calls recorded."""
    if probe is None:
        return transform
    call = probe.wrap_transform(transform.transform_sample)
    return RecordedTransform(transform, transform.where, call)
