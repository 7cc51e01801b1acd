"""`store=tensordict`: a tensorclass in tensordict's memory-mapped format."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import tensorclass

from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.store_leaves import bytes_of


@tensorclass
class Pair:
    """(input, label) rows as a tensorclass with the fields `data` and `targets`."""

    data: torch.Tensor
    """The inputs, one row for each sample."""
    targets: torch.Tensor
    """The labels, one row for each sample."""


_Pair: Any = Pair  # type checkers do not see the methods that tensorclass adds


@option
class TensorDictStore:
    """A memory-mapped tensorclass: one file per field, opened by `load_memmap`."""

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Let tensordict create the files, then fill them by plain writes.

        If tensordict's memory maps were written to, every page would count as memory of this
        process. folder: an empty folder. chunks: batches of rows, in order. num_samples: number of
        rows of all chunks. Raises Unsupported for samples other than (input, label) tuples.
        """
        chunks = iter(chunks)
        first = _check_pair(next(chunks))
        paths = _create_files(folder, first, num_samples)
        with ExitStack() as stack:
            files = {name: stack.enter_context(path.open("r+b")) for name, path in paths.items()}
            for pair in chain([first], map(_check_pair, chunks)):
                for name, value in pair.items():
                    files[name].write(bytes_of(value))

    def open(self, folder: Path) -> Any:
        """The rows, mapped into memory.

        Raises BadData for a folder with a pickle: tensordict would load it, which can run any code.
        """
        path = next(folder.rglob("*.pickle"), None)
        if path is not None:
            raise BadData(f"{path}: this store has no pickles; delete its folder")
        return _Pair.load_memmap(folder)


def _create_files(
    folder: Path, first: dict[str, torch.Tensor], num_samples: int
) -> dict[str, Path]:
    """Field -> path of its file for num_samples rows; load_memmap can open the folder.

    first: field -> the first rows, which determine dtype and shape.
    """
    # memmap_like() needs only shapes: expand() takes no memory.
    rows = {name: value[:1].expand(num_samples, *value.shape[1:]) for name, value in first.items()}
    mapped = _Pair(**rows, batch_size=[num_samples]).memmap_like(folder)
    return {name: Path(getattr(mapped, name).filename) for name in first}


def _check_pair(chunk: Tree) -> dict[str, torch.Tensor]:
    """Field -> tensor of the chunk; raises Unsupported unless the chunk is a pair of tensors."""
    is_pair = isinstance(chunk, (tuple, list)) and len(chunk) == 2
    if not is_pair or not all(isinstance(leaf, torch.Tensor) for leaf in chunk):
        raise Unsupported("store=tensordict takes (input, label) samples of two tensors only")
    return {"data": chunk[0], "targets": chunk[1]}
