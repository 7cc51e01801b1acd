"""Finds out whether a dataset of torchvision that holds its images in memory, such as MNIST, can be
read as arrays.

Its samples are made of images of Pillow, one by one. If the transform changes each value of a pixel
by itself, a batch has the same numbers if its rows are looked up in a table of the 256 results.
torchvision is never imported here: a program that has its datasets has imported it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from fastloop.fastloader.columns.column import Column, SampleSpec
from fastloop.fastloader.recognise_image_folders import (
    UnrecognisedError,
    describe_part,
    log_once,
    torchvision_name,
    transform_parts,
)

POINTWISE = frozenset(
    {"ToTensor", "PILToTensor", "ToImage", "ConvertImageDtype", "ToDtype", "Normalize"}
    | {"ToPureTensor"}
)
"""Transforms of torchvision that change each value of a pixel by itself, and draw nothing."""
FAMILIES = ("torchvision.datasets.mnist", "MNIST"), ("torchvision.datasets.cifar", "CIFAR10")
"""The base classes of datasets with images in memory: their modules and names."""


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Rows of bytes, converted by the transform that their dataset has when an epoch begins."""

    dataset: Any
    places: np.ndarray | None
    """The places of a Subset's samples in the dataset; None: all, in order."""
    pixels: np.ndarray
    """uint8, of shape (num_images, height, width) or (num_images, height, width, 3)."""
    table: np.ndarray
    """The transform's result for each value: (channels, 256)."""

    def __len__(self) -> int:
        return len(self.pixels if self.places is None else self.places)

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the samples."""
        dtype = torch.from_numpy(self.table[:0]).dtype
        return SampleSpec(dtype, (len(self.table), *self.pixels.shape[1:3]))

    def with_seed(self, seed: int) -> Column:  # noqa: ARG002 - nothing is drawn
        """The column of an epoch, by the dataset's present images and transform.

        Raises ValueError if it has been given a transform that is not recognised.
        """
        try:
            return _open_rows(self.dataset, self.places, len(self))
        except UnrecognisedError as reason:
            problem = f"the dataset was changed, and is not read natively any more: {reason}"
            raise ValueError(f"{problem}; make its FastLoader with native=False") from reason

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the converted images at `indices` to `out`."""
        pixels = self.pixels[indices if self.places is None else self.places[indices]]
        images = self.spec.view_tensor(out).numpy()
        for channel, values in enumerate(self.table):
            rows = pixels if pixels.ndim == 3 else pixels[..., channel]
            # All bytes are within the table. Without a mode, numpy would write to a copy first.
            np.take(values, rows, out=images[:, channel], mode="clip")


@dataclass(frozen=True, eq=False)
class ImageLabels:
    """The labels that a dataset has when an epoch begins."""

    dataset: Any
    places: np.ndarray | None
    """The places of a Subset's samples in the dataset; None: all, in order."""
    labels: np.ndarray

    spec = SampleSpec(torch.int64, ())

    def __len__(self) -> int:
        return len(self.labels if self.places is None else self.places)

    def with_seed(self, seed: int) -> Column:  # noqa: ARG002 - nothing is drawn
        """The column of an epoch, by the dataset's present labels."""
        try:
            return _open_labels(self.dataset, self.places, len(self))
        except UnrecognisedError as reason:
            problem = f"the dataset was changed, and is not read natively any more: {reason}"
            raise ValueError(f"{problem}; make its FastLoader with native=False") from reason

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the labels at `indices` to `out`."""
        places = indices if self.places is None else self.places[indices]
        out.view(np.int64)[:, 0] = self.labels[places]


def recognise_arrays(dataset: Any) -> list[Any] | None:
    """The columns [images, labels] of a dataset with images in memory, or of a Subset of one, that
    deliver the batches of its samples as default_collate makes them; None for everything else.

    The log says once that it is read natively, or why not.
    """
    images = _base_of(dataset)
    if not _has_images(images):
        return None
    name = f"{type(images).__name__} of {len(images):,} images"
    try:
        places = _find_places(dataset)
        count = len(dataset)
        columns = [_open_rows(images, places, count), _open_labels(images, places, count)]
    except UnrecognisedError as reason:
        log_once(f"{name} is read through its own __getitem__: {reason}")
        return None
    log_once(
        f"{name} is read natively, as rows of bytes; FastLoader(..., native=False) calls its own "
        "__getitem__"
    )
    return columns


def is_array_dataset(dataset: Any) -> bool:
    """True for a dataset with images in memory, or a Subset of one, that is read natively."""
    images = _base_of(dataset)
    try:
        return _has_images(images) and len(_look_up(images)) > 0
    except UnrecognisedError:
        return False


def _base_of(dataset: Any) -> Any:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def _has_images(dataset: Any) -> bool:
    """True for torchvision's MNIST and CIFAR10, and classes that read their samples likewise."""
    for module_name, name in FAMILIES:
        base = getattr(sys.modules.get(module_name), name, None)
        if base is None or not isinstance(dataset, base):
            continue
        kind = type(dataset)
        # A derived class with its own way to read a sample is read as it is written.
        has_own = kind.__getitem__ is not base.__getitem__ or kind.__len__ is not base.__len__
        return not has_own and not hasattr(dataset, "__getitems__")
    return False


def _find_places(dataset: Any) -> np.ndarray | None:
    """The places of a Subset's samples in its dataset; None for the dataset itself."""
    if type(dataset) is not Subset:
        return None
    try:
        own = np.asarray(dataset.indices, np.int64).reshape(len(dataset.indices))
        parent: Any = dataset.dataset
        within = _find_places(parent)
        # As the Subset itself does: negative numbers count from the end.
        return np.arange(len(parent))[own] if within is None else within[own]
    except (IndexError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"the indices of its Subset: {error}") from error


def _open_rows(dataset: Any, places: np.ndarray | None, count: int) -> ImageRows:
    """The images; raises UnrecognisedError if they, or the transform, are not read natively."""
    pixels = _as_array(dataset.data)
    if pixels.dtype != np.uint8 or pixels.ndim != _channel_dims(dataset):
        raise UnrecognisedError(f"its images are {pixels.dtype} of shape {pixels.shape[1:]}")
    _check_places(len(pixels), places, count)
    return ImageRows(dataset, places, pixels, _look_up(dataset))


def _open_labels(dataset: Any, places: np.ndarray | None, count: int) -> ImageLabels:
    """The labels; raises UnrecognisedError if they are not read natively."""
    if dataset.target_transform is not None:
        raise UnrecognisedError("it has a target_transform")
    targets = dataset.targets
    if isinstance(targets, list) and not all(type(target) is int for target in targets):
        raise UnrecognisedError("its labels are not all whole numbers")
    labels = _as_array(targets)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise UnrecognisedError("its labels are not all whole numbers")
    _check_places(len(labels), places, count)
    return ImageLabels(dataset, places, labels.astype(np.int64, copy=False))


def _check_places(length: int, places: np.ndarray | None, count: int) -> None:
    highest = -1 if places is None or not len(places) else int(places.max())
    if highest >= length or (places is None and length != count):
        raise UnrecognisedError(f"it has {length:,} images, and had more or fewer before")


def _as_array(values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"its data is no array: {error}") from error


def _channel_dims(dataset: Any) -> int:
    """Dimensions of the array of images: MNIST's have no channels."""
    return 3 if isinstance(dataset, sys.modules["torchvision.datasets"].MNIST) else 4


def _look_up(dataset: Any) -> np.ndarray:
    """The results of the dataset's transform for all values of a pixel: (channels, 256)."""
    transform = dataset.transform
    if transform is None:
        raise UnrecognisedError("it has no transform")
    for part in transform_parts(transform):
        if torchvision_name(part) not in POINTWISE:
            raise UnrecognisedError(f"{describe_part(part)} can't be done by a table")
    # Pillow makes images of mode L of two dimensions, and of RGB of three, as the datasets do.
    values = np.arange(256, dtype=np.uint8)[None]
    channels = 1 if _channel_dims(dataset) == 3 else 3
    fromarray = sys.modules["PIL.Image"].fromarray
    image = fromarray(values if channels == 1 else np.stack([values] * channels, axis=-1))
    try:
        result = transform(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnrecognisedError(f"its transform fails: {error}") from error
    if not isinstance(result, torch.Tensor) or result.shape != (channels, 1, 256):
        raise UnrecognisedError("its transform does not end in a tensor of an image")
    return _table_of(result)


def _table_of(result: torch.Tensor) -> np.ndarray:
    try:
        # A subclass of Tensor, such as torchvision's Image, collates to a plain tensor.
        return result.as_subclass(torch.Tensor)[:, 0].contiguous().numpy()
    except (RuntimeError, TypeError) as error:
        # numpy lacks some dtypes of torch, and can't show a tensor of another device.
        raise UnrecognisedError(f"its transform's result: {error}") from error
