"""Finds out whether `Images` can read an image folder of torchvision in its place, and how.

torchvision is never imported here: a program that has its transforms has imported it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Subset

from fastloop.fastloader.columns.column import Column, SampleSpec
from fastloop.fastloader.columns.crops import CenterCrop, Crop, RandomResizedCrop
from fastloop.fastloader.columns.decoders import has_jpeg
from fastloop.fastloader.columns.images import Images

EXTENSIONS = ".jpg", ".jpeg", ".png", ".webp"
"""Extensions of the files that `Images` reads with the same pixels as torchvision."""
LOG = logging.getLogger("fastloop")
MODULES = "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms._presets"
BILINEAR = "bilinear", 2
"""torchvision's name, and Pillow's number."""


class UnrecognisedError(Exception):
    """A dataset can't be read natively. The message is the reason."""


@dataclass(frozen=True)
class ImageSteps:
    """The work of transforms on an RGB image, as settings of `Images`."""

    crop: Crop | None = None
    flip: float = 0.0
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    dtype: torch.dtype = torch.uint8
    resize: int | None = None
    """Pixels to which the shorter side is resized before the crop. A centre crop takes this over,
    so that it is None again."""
    is_tensor: bool = False
    """True if the steps so far make a tensor, False if they make an image of Pillow."""

    def __str__(self) -> str:
        names = ("crop", "flip", "normalize", "dtype")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def read_transform(transform: Any) -> ImageSteps:
    """The steps of a transform, or of a composition, of torchvision's first or second version.

    Raises UnrecognisedError for anything that `Images` would not do in the same way.
    """
    steps = ImageSteps()
    for part in _parts(transform):
        try:
            following = _add_step(steps, torchvision_name(part), part)
        except (AttributeError, TypeError, ValueError) as error:
            raise UnrecognisedError(f"{_describe(part)}: {error}") from error
        if following is None:
            raise UnrecognisedError(f"{_describe(part)} is not done natively at this place")
        steps = following
    if steps.crop is None or not steps.is_tensor:
        raise UnrecognisedError("its transform makes no tensors by a crop that is done natively")
    return steps


def torchvision_name(part: Any) -> str:
    """The name of a transform of torchvision; "" for anything else, also for derived classes."""
    # A derived class may do something else under the same name: only torchvision's own is accepted.
    kind = type(part)
    modules = [sys.modules[name] for name in MODULES if name in sys.modules]
    return kind.__name__ if kind in [getattr(m, kind.__name__, None) for m in modules] else ""


def _parts(transform: Any) -> Iterator[Any]:
    """The transforms of nested compositions, in order."""
    if torchvision_name(transform) != "Compose" or not isinstance(
        transform.transforms, list | tuple
    ):
        yield transform
        return
    for part in transform.transforms:
        yield from _parts(part)


def _add_step(steps: ImageSteps, name: str, part: Any) -> ImageSteps | None:
    """The steps and one more; None if `Images` can't do that one after these."""
    if name == "ImageClassification":
        return _read_preset(part) if steps == ImageSteps() and _is_bilinear(part) else None
    if name in ("RandomResizedCrop", "Resize"):
        return _add_resize(steps, name, part)
    if name == "CenterCrop" and steps.resize is not None:
        return replace(steps, crop=CenterCrop(_pair(part.size), steps.resize), resize=None)
    if name == "RandomHorizontalFlip" and steps.crop is not None and steps.flip == 0:
        return replace(steps, flip=float(part.p))
    return _add_conversion(steps, name, part)


def _read_preset(part: Any) -> ImageSteps:
    """The steps of the transforms that come with torchvision's weights."""
    crop = CenterCrop(_pair(part.crop_size), _side(part.resize_size))
    normalize = _floats(part.mean), _floats(part.std)
    return ImageSteps(crop, normalize=normalize, dtype=torch.float32, is_tensor=True)


def _add_resize(steps: ImageSteps, name: str, part: Any) -> ImageSteps | None:
    """The steps with a RandomResizedCrop or a Resize added; None if `Images` can't do it here."""
    is_whole = steps.crop is None and steps.resize is None and steps.dtype == torch.uint8
    # Pillow always antialiases; torchvision's resize of tensors does so only on request.
    is_antialiased = part.antialias is True or not steps.is_tensor
    if not (is_whole and is_antialiased and _is_bilinear(part)):
        return None
    if name == "Resize":
        return None if part.max_size is not None else replace(steps, resize=_side(part.size))
    crop = RandomResizedCrop(_pair(part.size), _range(part.scale), _range(part.ratio))
    return replace(steps, crop=crop)


def _add_conversion(steps: ImageSteps, name: str, part: Any) -> ImageSteps | None:
    """The steps with a change of dtype or of values added; None if `Images` can't do it here."""
    is_uint8_tensor = steps.is_tensor and steps.dtype == torch.uint8
    is_scaling = name == "ConvertImageDtype" or (name == "ToDtype" and part.scale)
    if name in ("PILToTensor", "ToImage") and not steps.is_tensor:
        return replace(steps, is_tensor=True)
    # ToTensor converts to torch's default dtype.
    if name == "ToTensor" and not steps.is_tensor and torch.get_default_dtype() == torch.float32:
        return replace(steps, is_tensor=True, dtype=torch.float32)
    if is_scaling and is_uint8_tensor and part.dtype in (torch.uint8, torch.float32):
        return replace(steps, dtype=part.dtype)
    if name == "Normalize" and steps.dtype == torch.float32 and steps.normalize is None:
        return replace(steps, normalize=(_floats(part.mean), _floats(part.std)))
    return steps if name == "ToPureTensor" and steps.is_tensor else None


def _is_bilinear(part: Any) -> bool:
    return getattr(part.interpolation, "value", part.interpolation) in BILINEAR


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) of a size of one or two sides."""
    height, width = size if len(size) == 2 else (*size, *size)
    return height, width


def _side(size: Any) -> int:
    """The shorter side to which an image is resized; ValueError for a size of two sides."""
    (side,) = [size] if isinstance(size, int) else size
    return side


def _range(bounds: Any) -> tuple[float, float]:
    least, greatest = map(float, bounds)
    return least, greatest


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def _describe(part: Any) -> str:
    return getattr(part, "__name__", type(part).__name__)


@dataclass(frozen=True, eq=False)
class FolderImages:
    """The images of a folder, decoded by the transform that it has when an epoch begins."""

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


def has_native_steps(dataset: Any) -> bool:
    """True for an image folder, or a Subset of one, with transforms that `Images` does natively; no
    file is looked at."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    try:
        return _is_folder(dataset) and _read_steps(dataset).is_tensor
    except UnrecognisedError:
        return False


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
    """The steps of the folder's images; raises UnrecognisedError for steps that `Images` can't
    do."""
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
