"""Transforms of torchvision that draw, applied to each sample of a batch by itself.

torchvision draws once for each call: a RandomHorizontalFlip of a batch flips all of its images, or
none. Other callables get the batch: they can draw for each of its samples.
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
    """The transform, if any, by batch or by sample, called with a batch and its samples' indices.

    is_batched: False for single samples.
    """
    if transform is None:
        return None
    apply = _transform_samples if is_batched and draws_once(transform) else _transform_batch
    return partial(apply, transform, begin)


def _transform_batch(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    begin(TRANSFORM, indices)
    return transform(batch)


def _transform_samples(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    """The batch of the transformed samples. Raises ValueError for samples of several shapes."""
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
    """True for a transform of torchvision that draws, and for a composition with such a one."""
    name = type(transform).__name__
    if type(transform).__module__.startswith("torchvision.transforms"):
        # Only torchvision's classes: another class of such a name may draw for each sample of a
        # batch.
        if name.startswith("Random") or name in DRAWING:
            return True
    elif not isinstance(transform, torch.nn.Sequential | torch.nn.ModuleList):
        return False
    return any(map(draws_once, _parts(transform)))


def _parts(transform: Any) -> Iterable[Any]:
    if isinstance(transform, torch.nn.Module):
        yield from transform.children()
    parts = getattr(transform, "transforms", ())
    yield from parts if isinstance(parts, Sequence) else ()


def _stack(leaves: Sequence[Any]) -> Any:
    if not isinstance(leaves[0], torch.Tensor):
        return list(leaves)
    shapes = {tuple(leaf.shape) for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(f"transform made samples of shapes {sorted(shapes)}: a batch has one")
    return torch.stack(list(leaves))
