"""`placement=map_location`: torch.save into memory, torch.load onto the device."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable

import torch

from fastloop.trees import taken_apart
from fastloop.types import Tree, Unsupported, option


@option
class MapLocation:
    """Seed 004's torch.load(map_location), with weights_only: the tensors of a batch go as a list.

    torch.save would write the whole storage of a tensor that is a part of a larger one, so such a
    part is copied first.
    """

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, and with non_blocking, which torch.load lacks."""
        if self.non_blocking:
            raise Unsupported("placement.non_blocking=true: torch.load always waits for its copies")

        def place(tree: Tree) -> Tree:
            tensors, put_together = taken_apart(tree, device)
            file = io.BytesIO()
            torch.save([_alone(tensor) for tensor in tensors], file)
            file.seek(0)
            try:
                moved = torch.load(file, map_location=device, weights_only=True)
            except (pickle.UnpicklingError, NotImplementedError) as error:
                raise Unsupported(_why(tensors)) from error
            return put_together(moved)

        return place


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor in a storage that is no larger than it; one without strides as it is."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.detach()
    plain = tensor.detach().as_subclass(torch.Tensor)
    return plain.clone() if plain.untyped_storage().nbytes() > plain.nbytes else plain


def _why(tensors: list[torch.Tensor]) -> str:
    kinds = {f"{type(one).__name__} ({one.layout})".replace("torch.", "") for one in tensors}
    said = f"torch.load with weights_only makes none of {', '.join(sorted(kinds))}"
    return f"placement=map_location: {said}; placement=recursive moves any"
