"""The samples of a dataset as a loader reads them: transformed, None if they are broken, or with
images in uint8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastloop.core.plan import Plan
from fastloop.core.protocols import Collate, Dataset, Samples, Uint8Images
from fastloop.core.types import BadData, Tree, Unsupported, name_of
from fastloop.data.image_files import LabelledImages


def is_broken(sample: Tree | None) -> bool:
    """True for None and for a tuple, list or dict with a None in it.

    A Dataset returns such a sample if it could not read it. A collate returns such a batch if all
    of its samples are broken.
    """
    if sample is None:
        return True
    if isinstance(sample, dict):
        return any(map(is_broken, sample.values()))
    return isinstance(sample, tuple | list) and any(map(is_broken, sample))


@dataclass(frozen=True)
class TransformedSamples:
    """Samples with a transform applied to each, except to broken ones."""

    samples: Samples
    transform: Callable[[Tree], Tree]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree:
        return self._transform(self.samples[index])

    @property
    def __getitems__(self) -> Callable[[list[int]], list[Tree]] | None:
        """A function that reads the samples of a batch by the Dataset's own `__getitems__`, and
        transforms them; None if the Dataset has no such method."""
        getitems = getattr(self.samples, "__getitems__", None)
        if not getitems:
            return None
        return lambda indices: [self._transform(sample) for sample in getitems(indices)]

    def _transform(self, sample: Tree) -> Tree:
        return sample if is_broken(sample) else self.transform(sample)


@dataclass(frozen=True)
class TolerantSamples:
    """Samples with None in place of each that can't be decoded."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree | None:
        try:
            return self.samples[index]
        except BadData:
            return None

    @property
    def __getitems__(self) -> Callable[[list[int]], Any] | None:
        """The Dataset's own `__getitems__`; None if the Dataset has no such method."""
        # The Dataset's own function decides about the samples that it can't read.
        return getattr(self.samples, "__getitems__", None)


def wrap_samples(samples: Samples, plan: Plan) -> Samples:
    """The samples as a loader reads them: transformed and, if the collate is tolerant, None in
    place of a sample that can't be decoded.

    If the plan has a probe, it records each transform, and each read of a file of LabelledImages.
    """
    transform = plan.transform.transform_sample if plan.transform else None
    if plan.probe and isinstance(samples, LabelledImages):
        samples = replace(samples, read=plan.probe.wrap_read(samples.read))
    if plan.probe and transform:
        transform = plan.probe.wrap_transform(transform)
    if plan.collate is not None and plan.collate.tolerant:
        samples = TolerantSamples(samples)
    return TransformedSamples(samples, transform) if transform else samples


def uint8_samples(dataset: Dataset, collate: Collate) -> Samples:
    """The dataset's samples with images in uint8; raises Unsupported if the dataset has none.

    collate: the collate that asks for such samples, for the message.
    """
    return check_uint8(dataset, collate).open_uint8()


def check_uint8(dataset: Dataset, collate: Collate) -> Uint8Images:
    """Return the dataset; raises Unsupported, naming the collate, if it has no images in uint8."""
    if not isinstance(dataset, Uint8Images):
        raise Unsupported(f"collate={name_of(collate)}: {dataset.label} has no uint8 images")
    return dataset
