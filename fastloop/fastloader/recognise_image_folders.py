"""Recognise torchvision's image folders that `Images` can replace, and find the settings for that.

`recognise_images` returns the columns of a folder, or None if these would not deliver the same
batches. torchvision is never imported here: a program that uses its transforms has imported it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
TRANSFORM_MODULES = (
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms._presets",
)
"""Modules of torchvision with transforms that are recognised."""
BILINEAR = "bilinear", 2
"""Bilinear interpolation: torchvision's name, and Pillow's number."""


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
    """Pixels to which the shorter side is resized before the crop. None without such a step, or
    after a CenterCrop, which then includes the resize."""
    is_tensor: bool = False
    """True if the steps so far make a tensor, False if they make an image of Pillow."""

    def __str__(self) -> str:
        names = ("crop", "flip", "normalize", "dtype")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def read_transform(transform: Any) -> ImageSteps:
    """The steps of a transform or Compose of `torchvision.transforms` or its `v2`.

    Raises UnrecognisedError for anything that `Images` would not do in the same way.
    """
    steps = ImageSteps()
    for part in transform_parts(transform):
        add = READERS.get(torchvision_name(part))
        if has_own_call(part):
            raise UnrecognisedError(f"{describe_part(part)} has hooks or methods of its own")
        try:
            following = None if add is None else add(steps, part)
        except (AttributeError, TypeError, ValueError) as error:
            raise UnrecognisedError(f"{describe_part(part)}: {error}") from error
        if add is None:
            raise UnrecognisedError(f"{describe_part(part)} can't be done natively")
        if following is None:
            name = describe_part(part)
            raise UnrecognisedError(f"{name} can't be done natively after the steps before it")
        steps = following
    if steps.crop is None or not steps.is_tensor:
        raise UnrecognisedError(
            "its transform must end in a tensor and contain a crop that can be done natively"
        )
    return steps


def torchvision_name(part: Any) -> str:
    """The name of a transform of torchvision; "" for anything else, also for derived classes."""
    # A derived class may do something else under the same name: only torchvision's own is accepted.
    kind = type(part)
    modules = [sys.modules[name] for name in TRANSFORM_MODULES if name in sys.modules]
    return kind.__name__ if kind in [getattr(m, kind.__name__, None) for m in modules] else ""


def transform_parts(transform: Any) -> Iterator[Any]:
    """The transforms of nested compositions, in order."""
    parts = getattr(transform, "transforms", None)
    # A hook of the composition itself may change the result of all its parts.
    is_plain = torchvision_name(transform) == "Compose" and not has_own_call(transform)
    if not is_plain or not isinstance(parts, list | tuple):
        yield transform
        return
    for part in parts:
        yield from transform_parts(part)


def has_own_call(part: Any) -> bool:
    """True if this object has hooks, or a `forward` in place of that of its class."""
    own = getattr(part, "__dict__", {})
    return any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks", "forward"))


# Each of the functions in READERS adds the transform `part` to the steps before it. The function
# returns None if `Images` can't do the transform after these steps.
def _add_preset(steps: ImageSteps, part: Any) -> ImageSteps | None:
    """The steps of a transform that comes with torchvision's weights."""
    if steps != ImageSteps() or not _is_bilinear(part):
        return None
    crop = CenterCrop(_pair(part.crop_size), _side(part.resize_size))
    normalize = _floats(part.mean), _floats(part.std)
    return ImageSteps(crop, normalize=normalize, dtype=torch.float32, is_tensor=True)


def _add_random_crop(steps: ImageSteps, part: Any) -> ImageSteps | None:
    if not _can_resize(steps, part):
        return None
    crop = RandomResizedCrop(_pair(part.size), _range(part.scale), _range(part.ratio))
    return replace(steps, crop=crop)


def _add_resize(steps: ImageSteps, part: Any) -> ImageSteps | None:
    if not _can_resize(steps, part) or part.max_size is not None:
        return None
    return replace(steps, resize=_side(part.size))


def _can_resize(steps: ImageSteps, part: Any) -> bool:
    """True if `Images` can resize an image as this transform does after these steps."""
    is_whole = steps.crop is None and steps.resize is None and steps.dtype == torch.uint8
    # Pillow always antialiases; torchvision's resize of tensors does so only on request.
    is_antialiased = part.antialias is True or not steps.is_tensor
    return is_whole and is_antialiased and _is_bilinear(part)


def _add_center_crop(steps: ImageSteps, part: Any) -> ImageSteps | None:
    if steps.resize is None:
        return None
    return replace(steps, crop=CenterCrop(_pair(part.size), steps.resize), resize=None)


def _add_flip(steps: ImageSteps, part: Any) -> ImageSteps | None:
    if steps.crop is None or steps.flip != 0:
        return None
    return replace(steps, flip=float(part.p))


def _add_tensor(steps: ImageSteps, _: Any) -> ImageSteps | None:
    return None if steps.is_tensor else replace(steps, is_tensor=True)


def _add_float_tensor(steps: ImageSteps, _: Any) -> ImageSteps | None:
    # ToTensor converts to torch's default dtype.
    if steps.is_tensor or torch.get_default_dtype() != torch.float32:
        return None
    return replace(steps, is_tensor=True, dtype=torch.float32)


def _add_dtype(steps: ImageSteps, part: Any) -> ImageSteps | None:
    # ConvertImageDtype always scales the values, ToDtype only on request.
    is_scaled = getattr(part, "scale", True)
    is_uint8_tensor = steps.is_tensor and steps.dtype == torch.uint8
    if not (is_scaled and is_uint8_tensor and part.dtype in (torch.uint8, torch.float32)):
        return None
    return replace(steps, dtype=part.dtype)


def _add_normalize(steps: ImageSteps, part: Any) -> ImageSteps | None:
    if steps.dtype != torch.float32 or steps.normalize is not None:
        return None
    return replace(steps, normalize=(_floats(part.mean), _floats(part.std)))


def _keep_tensor(steps: ImageSteps, _: Any) -> ImageSteps | None:
    return steps if steps.is_tensor else None


READERS: Mapping[str, Callable[[ImageSteps, Any], ImageSteps | None]] = {
    "ImageClassification": _add_preset,
    "RandomResizedCrop": _add_random_crop,
    "Resize": _add_resize,
    "CenterCrop": _add_center_crop,
    "RandomHorizontalFlip": _add_flip,
    "PILToTensor": _add_tensor,
    "ToImage": _add_tensor,
    "ToTensor": _add_float_tensor,
    "ConvertImageDtype": _add_dtype,
    "ToDtype": _add_dtype,
    "Normalize": _add_normalize,
    "ToPureTensor": _keep_tensor,
}
"""Name of a transform of torchvision -> the function (steps, transform) that returns the steps with
the transform, or None if `Images` can't do the transform after these steps."""


def _is_bilinear(part: Any) -> bool:
    """True if the transform interpolates bilinearly."""
    return getattr(part.interpolation, "value", part.interpolation) in BILINEAR


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) of a size of one or two sides."""
    height, width = size if len(size) == 2 else (*size, *size)
    return height, width


def _side(size: Any) -> int:
    """Pixels to which the shorter side of an image is resized.

    Raises ValueError for a size of two sides.
    """
    (side,) = [size] if isinstance(size, int) else size
    return side


def _range(bounds: Any) -> tuple[float, float]:
    """(least, greatest) as floats."""
    least, greatest = map(float, bounds)
    return least, greatest


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


def describe_part(part: Any) -> str:
    """The name of a transform, or of its class."""
    return getattr(part, "__name__", type(part).__name__)


@dataclass(frozen=True, eq=False)
class FolderImages:
    """A column of a folder's images, with the transform that the folder had when it was opened."""

    dataset: Any
    """The folder, or a Subset of it."""
    samples: Sequence[tuple[str, int]]
    """(path, label) of each image."""
    steps: ImageSteps
    """The work of the folder's transform."""
    images: Images
    """The column that decodes the images and does these steps."""

    slow: ClassVar[bool] = True
    """Decoding costs more than a copy, see `Column`."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the samples."""
        return self.images.spec

    def with_seed(self, seed: int) -> Column:
        """The column of an epoch with this seed."""
        return self.images.with_seed(seed)

    def is_current(self) -> bool:
        """True if the folder still has these samples, and a transform of these steps."""
        folder = _folder_of(self.dataset)
        try:
            # Almost all pairs of items are the same object, which is compared in 5 ns.
            return (
                _is_folder(folder)
                and _read_steps(folder) == self.steps
                and list(_list_samples(self.dataset)) == self.samples
            )
        except (UnrecognisedError, IndexError, TypeError, ValueError):
            return False

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode the images at `indices` to `out`."""
        self.images.fill(indices, out)


def recognise_images(dataset: Any) -> list[Any] | None:
    """The columns [images, labels] of an image folder or a Subset of one; None for all else.

    The columns deliver the same batches as default_collate makes of the folder's samples. None if
    they can't. For a folder, the log says once with which settings the folder is read natively, or
    why it is not.
    """
    folder = _folder_of(dataset)
    if not _is_folder(folder):
        return None
    name = f"{type(folder).__name__} of {len(dataset):,} images"
    try:
        columns = _open_columns(dataset, folder)
    except UnrecognisedError as reason:
        log_once(f"{name} is read through its own __getitem__: {reason}")
        return None
    natively = f"{name} is read natively, as fastloop.Images(paths, {columns[0].steps})"
    log_once(f"{natively}; FastLoader(..., native=False) calls its own __getitem__")
    return columns


def has_native_steps(dataset: Any) -> bool:
    """True for an image folder, or a Subset of one, with transforms that `Images` can do.

    No file of the folder is looked at.
    """
    folder = _folder_of(dataset)
    try:
        return _is_folder(folder) and _read_steps(folder).is_tensor
    except UnrecognisedError:
        return False


def _folder_of(dataset: Any) -> Any:
    """The dataset inside of a Subset, or of nested Subsets; other datasets as they are."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def _is_folder(dataset: Any) -> bool:
    """True for torchvision's DatasetFolder, and classes that read its samples in the same way."""
    module = sys.modules.get("torchvision.datasets.folder")
    if module is None or not isinstance(dataset, module.DatasetFolder):
        return False
    return reads_as_written(dataset, module.DatasetFolder)


def reads_as_written(dataset: Any, base: type) -> bool:
    """True if a dataset's samples are read by the original methods of `base`.

    base: the class of torchvision from which the dataset's class is derived.
    """
    written = vars(sys.modules[base.__module__])
    for name in ("__getitem__", "__len__"):
        method = getattr(type(dataset), name)
        # A derived class may have a method of its own, and a program may replace the method of
        # torchvision's class. In both cases samples may be read in another way.
        if method is not getattr(base, name) or getattr(method, "__globals__", None) is not written:
            return False
    return not hasattr(dataset, "__getitems__")


def _open_columns(dataset: Any, folder: Any) -> list[Any]:
    """The columns of images and labels.

    Raises UnrecognisedError if their batches would differ from those of the folder's samples.
    """
    steps = _read_steps(folder)
    try:
        # A copy: a program may assign to items of the list.
        samples = list(_list_samples(dataset))
        paths, labels = [path for path, _ in samples], [label for _, label in samples]
    except (IndexError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"its samples are not (path, label): {error}") from error
    # Only for these kinds of files do the decoders return the same pixels.
    if not all(isinstance(path, str) and path.lower().endswith(EXTENSIONS) for path in paths):
        raise UnrecognisedError(f"it has files other than {', '.join(EXTENSIONS)}")
    if not all(type(label) is int for label in labels):
        raise UnrecognisedError("its labels are not all whole numbers")
    column = FolderImages(dataset, samples, steps, _open_images(paths, steps))
    return [column, torch.tensor(labels, dtype=torch.int64, device="cpu")]


def _read_steps(folder: Any) -> ImageSteps:
    """The steps of the folder's transform.

    Raises UnrecognisedError if `Images` can't read the folder in the same way.
    """
    module = sys.modules["torchvision.datasets.folder"]
    if not has_jpeg():
        raise UnrecognisedError("the native decoder of JPEG is missing, see fastloop.has_jpeg()")
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
    indices: Any = dataset.indices
    # Iterating over a tensor makes a tensor of each index: a million of these take a second.
    return [samples[i] for i in (indices.tolist() if hasattr(indices, "tolist") else indices)]


def _open_images(paths: Sequence[str], steps: ImageSteps) -> Images:
    """The files as a column with these steps; raises UnrecognisedError for invalid settings."""
    settings = {"flip": steps.flip, "normalize": steps.normalize, "dtype": steps.dtype}
    try:
        return Images(paths, crop=steps.crop, **settings)
    except ValueError as error:
        raise UnrecognisedError(str(error)) from error


@cache
def log_once(message: str) -> None:
    """Log a message, unless the same message has been logged before."""
    LOG.info(message)
