"""`store=tensordict`: a tensorclass in tensordict's memory-mapped format."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tensordict import tensorclass

from fastloop.rows import bytes_of
from fastloop.types import Tree, Unsupported, option


@tensorclass
class Pair:
    """(input, label) rows, as seed 000 keeps them: data and targets."""

    data: torch.Tensor
    targets: torch.Tensor


_Pair: Any = Pair  # what tensorclass adds to a class is hidden from type checkers


@option
class TensorDictStore:
    """One memory-mapped file a field, read back by `load_memmap`."""

    root: str

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Let tensordict lay the files out, then fill them by plain writes.

        Writing through its memory maps would count every page as memory of this process.
        Raises Unsupported for samples other than (input, label) tuples.
        """
        chunks = iter(chunks)
        first = _pair(next(chunks))
        paths = _lay_out(folder, first, num_samples)
        with ExitStack() as stack:
            files = {name: stack.enter_context(path.open("r+b")) for name, path in paths.items()}
            for pair in chain([first], map(_pair, chunks)):
                for name, value in pair.items():
                    files[name].write(bytes_of(value))

    def open(self, folder: Path) -> Any:
        """The rows, mapped into memory."""
        return _Pair.load_memmap(folder)


def _lay_out(folder: Path, first: dict[str, torch.Tensor], num_samples: int) -> dict[str, Path]:
    """The empty file of each field, in a folder that load_memmap reads."""
    rows = {name: value[:1].expand(num_samples, *value.shape[1:]) for name, value in first.items()}
    laid_out = _Pair(**rows, batch_size=[num_samples]).memmap_like(folder)
    return {name: Path(getattr(laid_out, name).filename) for name in first}


def _pair(chunk: Tree) -> dict[str, torch.Tensor]:
    pair = isinstance(chunk, (tuple, list)) and len(chunk) == 2
    if not pair or not all(isinstance(one, torch.Tensor) for one in chunk):
        raise Unsupported(
            "store=tensordict holds (input, label) samples, a tensor each; "
            "other trees do not fit its tensorclass"
        )
    return {"data": chunk[0], "targets": chunk[1]}
