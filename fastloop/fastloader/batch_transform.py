"""Apply a user's transform to batches, with the seeds of their samples.

A transform of torchvision draws once for each call. Given a batch, a RandomHorizontalFlip would
flip all images or none. Such a transform is therefore applied to each sample of the batch by
itself. Other callables get the whole batch, because they can draw for each of its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.sample_draws import TRANSFORM, Begin

DRAWING = frozenset(
    (
        "AugMix",
        "AutoAugment",
        "ColorJitter",
        "ElasticTransform",
        "GaussianBlur",
        "GaussianNoise",
        "JPEG",
        "RandAugment",
        "ScaleJitter",
        "TrivialAugmentWide",
    )
)
"""Transforms of torchvision that draw, besides those with names that begin with Random."""


def seed_transform(
    transform: Callable[[Tree], Tree] | None, begin: Begin, is_batched: bool
) -> Callable[[Tree, list[int]], Tree] | None:
    """A function (batch, indices of its samples) that seeds the draws and applies the transform.

    None if there is no transform. begin: called before the transform draws. is_batched: False:
    single samples take the place of batches.
    """
    if transform is None:
        return None
    apply = _transform_samples if is_batched and draws_once(transform) else _transform_batch
    return partial(apply, transform, begin)


def _transform_batch(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    """The batch, transformed by a single call."""
    begin(TRANSFORM, indices)
    return transform(batch)


def _transform_samples(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    """The batch of the samples, each transformed by a call of its own.

    Raises ValueError for a batch that is not of tensors, and if the results differ in shape.
    """
    leaves, structure = pytree.tree_flatten(batch)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        reason = "applied to each sample, it needs batches of tensors; or apply it in the Dataset"
        raise ValueError(f"transform={type(transform).__name__}: {reason}")
    samples = []
    for place, index in zip(range(len(leaves[0])), indices, strict=False):
        begin(TRANSFORM, (index,))
        samples.append(transform(structure.unflatten([leaf[place] for leaf in leaves])))
    return pytree.tree_map(lambda *leaves: _stack(leaves), *samples) if samples else batch


def draws_once(transform: Any) -> bool:
    """True for a transform of torchvision that draws, and for a composition that contains one.

    Compositions are those of torchvision, and torch's Sequential and ModuleList. False for a
    composition of any other class.
    """
    name = type(transform).__name__
    if type(transform).__module__.startswith("torchvision.transforms"):
        # Only torchvision's own classes count: another class of such a name may draw for each
        # sample of a batch.
        if name.startswith("Random") or name in DRAWING:
            return True
    elif not isinstance(transform, torch.nn.Sequential | torch.nn.ModuleList):
        return False
    return any(map(draws_once, _parts(transform)))


def _parts(transform: Any) -> Iterable[Any]:
    """Yield the transforms of a composition, from either kind of container."""
    if isinstance(transform, torch.nn.Module):
        yield from transform.children()
    parts = getattr(transform, "transforms", ())
    yield from parts if isinstance(parts, Sequence) else ()


def _stack(leaves: Sequence[Any]) -> Any:
    """The leaves as one tensor, or as a list if they are not tensors.

    Raises ValueError for tensors of several shapes.
    """
    if not isinstance(leaves[0], torch.Tensor):
        return list(leaves)
    shapes = {tuple(leaf.shape) for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(f"transform made samples of shapes {sorted(shapes)}: a batch has one")
    return torch.stack(list(leaves))
