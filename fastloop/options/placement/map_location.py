"""`placement=map_location`: saves batches into memory, and loads them onto the device."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import torch

from fastloop.core.move_tensors import split_tensors
from fastloop.core.types import Tree, Unsupported, option


@option
class MapLocationPlacement:
    """A placement by torch.save into memory, and torch.load with the device as map_location.

    torch.save writes the whole storage of a view, so views of larger tensors are copied first.
    """

    non_blocking: bool
    """Must be False, because torch.load always waits for its copies."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function that returns a tree of the same types with its tensors on the device.

        Raises Unsupported if `non_blocking` is True. The function raises Unsupported for leaves
        that can't be moved, and for tensors that torch.load can't load.
        """
        if self.non_blocking:
            raise Unsupported("placement.non_blocking=true: torch.load always waits for its copies")

        def place(tree: Tree) -> Tree:
            tensors, join = split_tensors(tree, device)
            file = io.BytesIO()
            torch.save([_in_own_storage(tensor) for tensor in tensors], file)
            file.seek(0)
            try:
                moved = torch.load(file, map_location=device, weights_only=True)
            except (pickle.UnpicklingError, NotImplementedError) as error:
                raise Unsupported(_reason(tensors)) from error
            return join(moved)

        return place


def _in_own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The detached tensor as a torch.Tensor, in a storage that is no larger than the tensor.

    Nested tensors, and tensors of a layout without strides, are only detached.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.detach()
    plain = tensor.detach().as_subclass(torch.Tensor)
    return plain.clone() if plain.untyped_storage().nbytes() > plain.nbytes else plain


def _reason(tensors: list[torch.Tensor]) -> str:
    """The error message for tensors that torch.load can't load, with their types and layouts."""
    kinds = {f"{type(leaf).__name__} ({leaf.layout})".replace("torch.", "") for leaf in tensors}
    reason = f"torch.load with weights_only can't load {', '.join(sorted(kinds))}"
    return f"placement=map_location: {reason}; placement=recursive moves any"
