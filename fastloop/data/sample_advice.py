"""Advise on samples that can't be made a batch: of several lengths or image sizes, or of text."""

from __future__ import annotations

from contextlib import suppress

from fastloop.core.protocols import Dataset
from fastloop.core.trees import tree_leaves
from fastloop.core.types import BadData, LengthsDiffer, UnusableLeaves
from fastloop.data.cropped_dataset import CroppableDataset

OWN_COLLATE = "collate=<module>.<function>"
CALLERS = "which loader=raw, for example, calls"
"""Parts of the advice: the setting of a user's collate, and a loader that calls the collate."""
SIZED_FILES = 16
"""Approximate number of images that are read to find their sizes."""
SHOWN_SIZES = 3
"""Maximum number of different sizes that the error message shows."""
MOST_SIDE = 224
"""The largest side of images, in pixels, that the error message suggests."""


def advise(error: BadData, dataset: Dataset) -> str:
    """The message of an error about all samples of a dataset, in one line, with the remedy."""
    # An error of a DataLoader worker has a whole traceback, which ends with the class and message.
    kind = type(error)
    prefix = f"{kind.__module__}.{kind.__qualname__}: "
    line = str(error).strip().splitlines()[-1].removeprefix(prefix)
    if isinstance(error, UnusableLeaves):
        remedy = f"return tensors, or make them by a collate of your own, {OWN_COLLATE}, {CALLERS}"
        return f"{_name_setting(dataset)}: {line}; {remedy}"
    is_declared = getattr(dataset, "ragged", ...)
    if is_declared is ...:
        return _add_size_remedy(line, dataset)
    name = _name_setting(dataset)
    alike = f"a collate of your own, {OWN_COLLATE}, {CALLERS}, may make them alike"
    if not isinstance(error, LengthsDiffer):
        return f"{name}: {line}; {alike}"
    ragged = "" if is_declared is None else "dataset.ragged=true "
    pad = f"{ragged}collate=pad benchmark=traversal pads them to the longest of each batch"
    return f"{name}: {line}; {pad}; {alike}, of one length in all batches"


def _add_size_remedy(line: str, dataset: Dataset) -> str:
    """An error message about samples that differ in shape, with a remedy if there is one for images
    of different sizes."""
    # Only size=None has a remedy: images then keep their own sizes. `...` stands for a dataset
    # without the setting `size`.
    if getattr(dataset, "size", ...) is not None:
        return line
    sizes = _image_sizes(dataset)
    side = min([MOST_SIDE, *(side for size in sizes for side in size)])
    names = f"as torchvision's Resize({side}) and CenterCrop({side}) do"
    can_be_cropped = isinstance(dataset, CroppableDataset)
    crops = "transform=random_resized_crop (training), transform=center_crop (validation), "
    size = f"dataset.size=[{side},{side}], which resizes and crops them, {names}"
    ways = f"add one of {crops}{size}" if can_be_cropped else f"add {size}"
    # All images that were read have one size. Other images, or the labels, must differ.
    if len(sizes) < 2:
        return f"{line}; {ways}"
    shown = [f"{width}x{height}" for height, width in sizes[:SHOWN_SIZES]]
    if len(sizes) > SHOWN_SIZES:
        shown.append("…")
    return f"images have different sizes ({', '.join(shown)}), so they can't be stacked; {ways}"


def _image_sizes(dataset: Dataset) -> list[tuple[int, int]]:
    """The different (height, width), in pixels, of about SIZED_FILES images.

    The images are spread evenly over the dataset. Images that can't be read are left out.
    """
    samples = dataset.open()
    sizes = dict[tuple[int, int], None]()
    step = max(1, (len(samples) - 1) // (SIZED_FILES - 1))
    for index in range(0, len(samples), step):
        with suppress(BadData):
            images = [leaf for leaf in tree_leaves(samples[index]) if getattr(leaf, "ndim", 0) == 3]
            sizes |= dict.fromkeys((int(each.shape[-2]), int(each.shape[-1])) for each in images)
    return [*sizes]


def _name_setting(dataset: Dataset) -> str:
    """The setting that names the user's own Dataset, or the name of another dataset."""
    target = getattr(dataset, "target", None)
    return f"dataset={target}" if target else f"dataset {dataset.label}"
