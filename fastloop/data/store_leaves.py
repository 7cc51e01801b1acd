"""The leaves of a batch as stores write them: bytes, arrays, and the text of their tree."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import Unsupported


def bytes_of(leaf: torch.Tensor) -> memoryview:
    """The bytes of a host tensor of any dtype, in row-major order."""
    return leaf.contiguous().view(-1).view(torch.uint8).numpy().data


def array_of(leaf: torch.Tensor, option: str, alternative: str) -> np.ndarray:
    """The tensor as an array that shares its memory.

    Raises Unsupported for a dtype that numpy lacks; its message names `option` and `alternative`.
    """
    try:
        return leaf.numpy()
    except TypeError as error:
        kind = str(leaf.dtype).removeprefix("torch.")
        raise Unsupported(f"{option} can't hold {kind}; {alternative} can") from error


def structure_text(structure: pytree.TreeSpec, option: str) -> str:
    """A tree as text for torch's treespec_loads.

    Raises Unsupported, naming the option, for a tree that the text would not restore, such as one
    of named tuples, or with keys that JSON does not have.
    """
    # The text is read back and compared, as JSON may change a key without an error.
    with suppress(NotImplementedError, TypeError, ValueError):
        text = pytree.treespec_dumps(structure)
        if pytree.treespec_loads(text) == structure:
            return text
    allowed = "tuples, lists and dicts with string or integer keys"
    remedy = "loader=raw and FastLoader(dataset) take any"
    raise Unsupported(f"{option} holds trees of {allowed}; {remedy}")
