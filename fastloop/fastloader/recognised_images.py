"""Image folders of torchvision with transforms that `Images` does in their place."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Subset

from fastloop.fastloader.columns.column import Column, SampleSpec
from fastloop.fastloader.columns.images import Images
from fastloop.fastloader.columns.jpeg import has_jpeg
from fastloop.fastloader.recognised_transforms import ImageSteps, UnrecognisedError, read_transform

EXTENSIONS = ".jpg", ".jpeg", ".png", ".webp"
"""Extensions of the files that `Images` reads with the same pixels as torchvision."""
LOG = logging.getLogger("fastloop")


@dataclass(frozen=True, eq=False)
class FolderImages:
    """The images of a folder, made as its transform says when an epoch begins."""

    folder: Any
    paths: Sequence[str]
    steps: ImageSteps
    """The steps of the transform that the folder had when the loader was made."""
    images: Images

    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.images)

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the samples."""
        return self.images.spec

    def with_seed(self, seed: int) -> Column:
        """The column of an epoch with this seed.

        Raises ValueError if the folder has been given a transform that is not recognised.
        """
        try:
            # A script may assign another transform between epochs, which a DataLoader would use.
            steps = _read_steps(self.folder)
            images = self.images if steps == self.steps else _open_images(self.paths, steps)
        except UnrecognisedError as reason:
            problem = f"the dataset was changed, and is not read natively any more: {reason}"
            raise ValueError(f"{problem}; make its FastLoader with native=False") from reason
        return images.with_seed(seed)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode the images at `indices` to `out`."""
        self.images.fill(indices, out)


def recognise_images(dataset: Any) -> list[Any] | None:
    """The columns [images, labels] of an image folder, or of a Subset of one, that deliver the
    batches of its samples as default_collate makes them; None for everything else.

    For a folder the log says once which settings are used natively, or why none are.
    """
    folder = dataset
    while type(folder) is Subset:
        folder = folder.dataset
    if not _is_folder(folder):
        return None
    name = f"{type(folder).__name__} of {len(dataset):,} images"
    try:
        columns = _open_columns(dataset, folder)
    except UnrecognisedError as reason:
        _log_once(f"{name} is read as it is written: {reason}")
        return None
    natively = f"{name} is read natively, as fastloop.Images(paths, {columns[0].steps})"
    _log_once(f"{natively}; FastLoader(..., native=False) reads it as it is written")
    return columns


def _is_folder(dataset: Any) -> bool:
    """True for torchvision's DatasetFolder, and classes that read its samples in the same way."""
    module = sys.modules.get("torchvision.datasets.folder")
    if module is None or not isinstance(dataset, module.DatasetFolder):
        return False
    kind, base = type(dataset), module.DatasetFolder
    # A derived class with its own way to read a sample is read as it is written.
    has_own = kind.__getitem__ is not base.__getitem__ or kind.__len__ is not base.__len__
    return not has_own and not hasattr(dataset, "__getitems__")


def _open_columns(dataset: Any, folder: Any) -> list[Any]:
    steps = _read_steps(folder)
    try:
        samples = _list_samples(dataset)
        paths, labels = [path for path, _ in samples], [label for _, label in samples]
    except (IndexError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"its samples are no (path, label): {error}") from error
    # The decoders make the same pixels for these kinds of files alone.
    if not all(isinstance(path, str) and path.lower().endswith(EXTENSIONS) for path in paths):
        raise UnrecognisedError(f"it has files other than {', '.join(EXTENSIONS)}")
    if not all(type(label) is int for label in labels):
        raise UnrecognisedError("its labels are not all whole numbers")
    column = FolderImages(folder, paths, steps, _open_images(paths, steps))
    return [column, torch.tensor(labels, dtype=torch.int64, device="cpu")]


def _read_steps(folder: Any) -> ImageSteps:
    """The steps of the folder's images; raises UnrecognisedError for others than `Images` does."""
    module = sys.modules["torchvision.datasets.folder"]
    if not has_jpeg():
        raise UnrecognisedError("the native decoder of JPEG is not there, see fastloop.has_jpeg()")
    if folder.loader not in (module.default_loader, module.pil_loader):
        raise UnrecognisedError("it has a loader of its own")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise UnrecognisedError("torchvision's image backend is not PIL")
    if folder.target_transform is not None:
        raise UnrecognisedError("it has a target_transform")
    if folder.transform is None:
        raise UnrecognisedError("it has no transform")
    return read_transform(folder.transform)


def _list_samples(dataset: Any) -> Sequence[tuple[str, int]]:
    """(path, label) of each sample of a folder, or of a Subset of one."""
    if type(dataset) is not Subset:
        return dataset.samples
    samples = _list_samples(dataset.dataset)
    return [samples[index] for index in dataset.indices]


def _open_images(paths: Sequence[str], steps: ImageSteps) -> Images:
    settings = {"flip": steps.flip, "normalize": steps.normalize, "dtype": steps.dtype}
    try:
        return Images(paths, crop=steps.crop, **settings)
    except ValueError as error:
        raise UnrecognisedError(str(error)) from error


@cache
def _log_once(message: str) -> None:
    LOG.info(message)
