"""Recognise datasets of torchvision that hold their images in memory, such as MNIST, and read them
as arrays.

`recognise_arrays` returns a column of images and a column of labels; a column makes one leaf of
each batch. The result is None if the columns would not deliver the same batches as the dataset.

torchvision makes each sample from an image of Pillow. Here a transform that changes each value of a
pixel by itself becomes a table of its 256 results, which converts a whole batch. A random crop of
the padded images and a random flip are done on the bytes before that. Pillow changes the size or
the colours of the images, before crop and flip, as it does in torchvision. torchvision is never
imported here: a program that uses its datasets has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Subset

from fastloop.fastloader.columns.image_rows import (
    ImageLabels,
    ImageRows,
    Margins,
    RandomMoves,
    Steps,
    apply_parts,
    make_image,
)
from fastloop.fastloader.recognise_image_folders import (
    UnrecognisedError,
    describe_part,
    has_own_call,
    log_once,
    reads_as_written,
    torchvision_name,
    transform_parts,
)

C = TypeVar("C", ImageRows, ImageLabels)
POINTWISE = frozenset(
    {"ToTensor", "PILToTensor", "ToImage", "ConvertImageDtype", "ToDtype", "Normalize"}
    | {"ToPureTensor"}
)
"""Names of torchvision's transforms that change each value of a pixel by itself, and draw no random
numbers."""
RESHAPING = frozenset({"Resize", "CenterCrop", "Pad", "Grayscale"})
"""Names of torchvision's transforms that change the size or the colours of an image, and draw no
random numbers."""
CROP, FLIP = "RandomCrop", "RandomHorizontalFlip"
"""Names of torchvision's transforms that draw random numbers, and move pixels without changing
their values."""
FAMILIES = ("torchvision.datasets.mnist", "MNIST"), ("torchvision.datasets.cifar", "CIFAR10")
"""Module and name of each base class of datasets with images in memory."""


def recognise_arrays(dataset: Any) -> list[Any] | None:
    """The columns [images, labels] of a dataset with images in memory, or of a Subset of one.

    The columns deliver the batches that default_collate makes of the dataset's samples. None for
    any other dataset. The log says once that the dataset is read natively, which means by columns,
    or gives the reason against that.
    """
    images = _base_of(dataset)
    if not _has_images(images):
        return None
    name = f"{type(images).__name__} of {len(images):,} images"
    try:
        columns = [_open_rows(dataset), _open_labels(dataset)]
    except UnrecognisedError as reason:
        log_once(f"{name} is read through its own __getitem__: {reason}")
        return None
    log_once(
        f"{name} is read natively, as rows of bytes; FastLoader(..., native=False) calls its own "
        "__getitem__"
    )
    return columns


def is_array_dataset(dataset: Any) -> bool:
    """True for a dataset with images in memory, or a Subset of one, that is read natively.

    The call reads attributes of the dataset and runs no other code of the user. It raises no error.
    The table of the POINTWISE transforms is not made. If it can't be made, the result is True, but
    the dataset is not read natively.
    """
    return _find_steps(dataset) is not None


def needs_no_pillow(dataset: Any) -> bool:
    """True for a dataset that is read natively, and without an image of Pillow for each sample.

    Such a dataset has no RESHAPING transform that changes images of its size.
    """
    steps = _find_steps(dataset)
    return steps is not None and not steps.reshaping


def _find_steps(dataset: Any) -> Steps | None:
    """The work of the dataset's transform; None if the dataset is not read natively."""
    images = _base_of(dataset)
    try:
        if not _has_images(images):
            return None
        pixels = _find_pixels(images)
        _open_labels(dataset)
        return _divide_transform(images.transform, pixels.shape[1:])
    except Exception:
        # A property of a user's class may raise anything.
        return None


def _base_of(dataset: Any) -> Any:
    """The innermost dataset of nested Subsets; any other dataset is returned as it is."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def _has_images(dataset: Any) -> bool:
    """True for torchvision's MNIST and CIFAR10, and for derived classes that read their samples in
    the same way."""
    for module_name, name in FAMILIES:
        base = getattr(sys.modules.get(module_name), name, None)
        # None: the program has not imported this part of torchvision, so it has no such dataset.
        if base is not None and isinstance(dataset, base):
            return reads_as_written(dataset, base)
    return False


def _find_places(dataset: Any) -> np.ndarray | None:
    """The int64 places of a Subset's samples in the innermost dataset; None without a Subset.

    Raises UnrecognisedError if the Subset's indices are not integers within its dataset.
    """
    if type(dataset) is not Subset:
        return None
    try:
        own = np.asarray(dataset.indices)
        parent = dataset.dataset
        if own.dtype.kind not in "iu" and len(own):
            raise UnrecognisedError(f"the indices of its Subset are {own.dtype}")
        within = _find_places(parent)
        # Negative numbers count from the end, as in the Subset itself.
        within = np.arange(len(parent)) if within is None else within  # pyright: ignore
        return within[own.astype(np.int64).reshape(-1)]
    except (IndexError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"the indices of its Subset: {error}") from error


def _open_rows(dataset: Any) -> ImageRows:
    """The column of images; raises UnrecognisedError if the images, or the transform, can't be read
    natively."""
    images = _base_of(dataset)
    places = _find_places(dataset)
    pixels = _find_pixels(images)
    _check_places(len(pixels), places, dataset)
    steps = _divide_transform(images.transform, pixels.shape[1:])
    table = _look_up(steps.pointwise, channels=1 if len(steps.shape) == 2 else 3)
    return ImageRows(dataset, places, pixels, steps, table, partial(_reopen, _open_rows))


def _reopen(open_column: Callable[[Any], C], dataset: Any) -> C | None:
    """The column of the dataset as it is now; None if it can't be read natively any more."""
    if not _has_images(_base_of(dataset)):
        return None
    try:
        return open_column(dataset)
    except UnrecognisedError:
        return None


def _find_pixels(images: Any) -> np.ndarray:
    """The uint8 pixels of all images: (num_images, height, width), and 3 if they have colours.

    Raises UnrecognisedError for images of another dtype or shape.
    """
    pixels = _as_array(getattr(images, "data", None))
    channels = () if _is_grey(images) else (3,)
    if pixels.dtype != np.uint8 or pixels.ndim < 3 or pixels.shape[3:] != channels:
        raise UnrecognisedError(f"its images are {pixels.dtype} of shape {pixels.shape[1:]}")
    return pixels


def _open_labels(dataset: Any) -> ImageLabels:
    """The column of labels; raises UnrecognisedError if the labels can't be read natively."""
    images = _base_of(dataset)
    places = _find_places(dataset)
    if images.target_transform is not None:
        raise UnrecognisedError("it has a target_transform")
    labels = _as_array(images.targets)
    # MNIST makes an int of each label, and CIFAR10 leaves each label as it is.
    is_whole = labels.dtype.kind in "iu" if _is_grey(images) else labels.dtype == np.int64
    if not is_whole or labels.ndim != 1:
        raise UnrecognisedError(f"its labels are {labels.dtype} of {labels.ndim} dimensions")
    _check_places(len(labels), places, dataset)
    reopen = partial(_reopen, _open_labels)
    return ImageLabels(dataset, places, labels.astype(np.int64, copy=False), reopen)


def _check_places(length: int, places: np.ndarray | None, dataset: Any) -> None:
    """Raise UnrecognisedError if a sample has no image, or no label.

    length: number of images, or of labels. places: as from `_find_places`.
    """
    count = len(dataset) if places is None else int(places.max(initial=-1)) + 1
    if count > length:
        raise UnrecognisedError(f"it has {count:,} samples, and {length:,} images or labels")


def _as_array(values: Any) -> np.ndarray:
    """The values as an array; raises UnrecognisedError if numpy can't make an array of them."""
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"its data is not an array: {error}") from error


def _is_grey(images: Any) -> bool:
    """True for MNIST, which makes grey images; CIFAR10's have three channels."""
    return isinstance(images, sys.modules["torchvision.datasets"].MNIST)


def _divide_transform(transform: Any, shape: tuple[int, ...]) -> Steps:
    """The steps of a transform of images of `shape`.

    Raises UnrecognisedError for a transform that does not consist of such steps.
    """
    if transform is None:
        raise UnrecognisedError("it has no transform")
    reshaping = []
    moves = None
    parts = []
    for part in transform_parts(transform):
        name = torchvision_name(part)
        if has_own_call(part):
            raise UnrecognisedError(f"{describe_part(part)} has hooks or methods of its own")
        if name in RESHAPING and moves is None and not parts:
            changed = _shape_after(part, shape)
            # None: this transform leaves images of this size as they are. For example, Resize(28)
            # does not change an image of 28 pixels.
            if changed is not None:
                reshaping.append(part)
                shape = changed
        elif name in (CROP, FLIP):
            # The crop's margin of zeros is added to the bytes here. After Normalize, torchvision
            # would add zeros to values among which zero no longer means black.
            if any(torchvision_name(each) == "Normalize" for each in parts):
                raise UnrecognisedError(f"{name} after Normalize can't be done natively")
            moves = _add_move(moves or RandomMoves(), name, part, *shape[:2])
        elif name in POINTWISE:
            parts.append(part)
        else:
            raise UnrecognisedError(f"{describe_part(part)} can't be done by a table")
    return Steps(tuple(reshaping), shape, moves, tuple(parts))


def _shape_after(part: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the bytes that this transform makes of an image of `shape`.

    None if the transform returns the image itself. Raises UnrecognisedError if the transform fails,
    or makes anything but bytes of a grey image or of three channels.
    """
    image = make_image(np.zeros(shape, np.uint8))
    try:
        result = part(image)
        pixels = np.asarray(result)
    except Exception as error:
        raise UnrecognisedError(f"{describe_part(part)} fails: {error}") from error
    if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (3,)):
        raise UnrecognisedError(f"{describe_part(part)} makes {pixels.dtype} of {pixels.shape}")
    return None if result is image else pixels.shape


def _add_move(moves: RandomMoves, name: str, part: Any, height: int, width: int) -> RandomMoves:
    """The moves with this crop or flip of images of that size in pixels.

    Raises UnrecognisedError for a second crop or flip, and for one with unknown settings.
    """
    try:
        if name == FLIP and not moves.flip:
            return replace(moves, flip=float(part.p))
        if name == CROP and moves.size is None:
            return _add_crop(moves, part, height, width)
    except (AttributeError, TypeError, ValueError) as error:
        raise UnrecognisedError(f"{name}: {error}") from error
    raise UnrecognisedError(f"a second {name} can't be done natively")


def _add_crop(moves: RandomMoves, part: Any, height: int, width: int) -> RandomMoves:
    """The moves with this RandomCrop; raises UnrecognisedError if it can't be done natively."""
    if part.pad_if_needed or part.fill != 0 or part.padding_mode != "constant":
        raise UnrecognisedError(f"{CROP} can't be done natively unless it pads with zeros")
    margins = _margins(part)
    # Here the flip follows the crop. The order of the two makes no difference if the left and the
    # right margin are equal.
    if moves.flip and margins.left != margins.right:
        raise UnrecognisedError(f"{CROP} with unequal margins after {FLIP} can't be done natively")
    cropped = replace(moves, size=(part.size[0], part.size[1]), margins=margins)
    sides = cropped.sides(height, width)
    if min(margins) < 0 or part.size[0] > sides[0] or part.size[1] > sides[1]:
        raise UnrecognisedError(f"{CROP} of {tuple(part.size)} from images of {sides}")
    return cropped


def _margins(crop: Any) -> Margins:
    """The margins that a crop of torchvision adds to an image."""
    padding = 0 if crop.padding is None else crop.padding
    if isinstance(padding, int):
        return Margins(padding, padding, padding, padding)
    # The second version of the transforms stores (left, right, top, bottom).
    if type(crop).__module__.startswith("torchvision.transforms.v2"):
        left, right, top, bottom = padding
    else:
        left, top, right, bottom = [*padding] * (4 // len(padding))
    return Margins(left, top, right, bottom)


def _look_up(parts: Sequence[Any], channels: int) -> np.ndarray:
    """The table of the results of these transforms for all values of a pixel: (channels, 256).

    Raises UnrecognisedError if the transforms fail, or do not end in a tensor of an image.
    """
    values = np.arange(256, dtype=np.uint8)[None]
    values = values if channels == 1 else np.stack([values] * channels, axis=-1)
    try:
        image = apply_parts(parts, make_image(values))
    except Exception as error:
        raise UnrecognisedError(f"its transform fails: {error}") from error
    if not isinstance(image, torch.Tensor) or image.shape != (channels, 1, 256):
        raise UnrecognisedError("its transform does not end in a tensor of an image")
    return _table_of(image)


def _table_of(result: torch.Tensor) -> np.ndarray:
    """The array (channels, 256) of a transformed image (channels, 1, 256) with all values.

    Raises UnrecognisedError for a tensor that numpy can't show.
    """
    try:
        # A subclass of Tensor, such as torchvision's Image, collates to a plain tensor.
        return result.as_subclass(torch.Tensor)[:, 0].contiguous().numpy()
    except (RuntimeError, TypeError) as error:
        # numpy lacks some dtypes of torch, and can't show a tensor of another device.
        raise UnrecognisedError(f"its transform's result: {error}") from error
