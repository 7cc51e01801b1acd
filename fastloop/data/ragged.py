"""Samples that differ in length, such as texts: batches of them, and their stores.

The first dimension of each leaf may differ between samples. The same-data gate batches them by
concatenation; padding replaces such a leaf by (padded, lengths). A store has a file of values and a
file of offsets: row i of a leaf is values[offsets[i] : offsets[i + 1]].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import optree
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from fastloop.core.protocols import Dataset, RaggedDataset
from fastloop.core.types import BadData, Invalid, Leaves, SamplesDiffer, Tree
from fastloop.data.npy_store import FORMAT_NAME, STRUCTURE, map_array, write_header
from fastloop.data.rows import array_of, structure_text
from fastloop.fastloader.columns.ragged_rows import RaggedRows

VARIES = -1
"""Placeholder in a shape for a first dimension that differs between samples."""

LISTS_OF_NUMBERS = "a list of numbers is as many leaves; torch.tensor(list) is one"
"""What to do with the lists that a tokenizer returns."""
STORES_RAGGED = "ragged=True stores them with offsets"
"""The remedy for samples of several lengths that `write_store` refuses."""
OFFSETS, TEXT = "offsets.npy", "text.npy"
CHECKED_ROWS = 1 << 20
"""Number of offsets that are checked at a time."""


@dataclass(frozen=True)
class JaggedTensor:
    """A leaf of several samples, concatenated, with the shape (batch, VARIES, …)."""

    values: torch.Tensor
    """Concatenated values, (sum of lengths, …)."""
    lengths: torch.Tensor
    """Length of each sample's leaf, int64 (batch,)."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions, including the batch dimension."""
        return self.values.ndim + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, VARIES, …)."""
        return (len(self), VARIES, *self.values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of values and lengths."""
        return self.values.nbytes + self.lengths.nbytes


def is_ragged(dataset: Dataset) -> bool:
    """True if the dataset declares that its samples differ in length."""
    # The attribute is None if it is not known yet.
    return isinstance(dataset, RaggedDataset) and bool(dataset.ragged)


def shapes_to_pad(leaves: Leaves) -> Leaves:
    """The leaves with VARIES as the first dimension of each, as if samples differed in length."""
    return tuple((dtype, (VARIES, *shape[1:]) if shape else ()) for dtype, shape in leaves)


def collate_by_leaf(samples: Sequence[Tree], collate: Callable[[list[torch.Tensor]], Any]) -> Tree:
    """Collate samples leaf by leaf: leaves with a dimension by `collate`, which gets a list of
    their tensors, and the others by torch's default_collate.

    Raises ValueError if trees differ.
    """
    flat = [optree.tree_flatten(sample) for sample in samples]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError("the samples are different trees")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return optree.tree_unflatten(
        structure, [_collate_column(list(column), collate) for column in columns]
    )


def collate_jagged(samples: Sequence[Tree]) -> Tree:
    """A batch in which each leaf that has a dimension is a JaggedTensor.

    Raises ValueError if trees or dtypes differ, or no leaf has a dimension.
    """
    batch = collate_by_leaf(samples, _join)
    if not any(isinstance(leaf, JaggedTensor) for leaf in optree.tree_leaves(batch)):
        raise ValueError(f"no leaf of the samples has a dimension; {LISTS_OF_NUMBERS}")
    return batch


def remove_padding(batch: Tree, leaves: Iterable[tuple[str, tuple[int, ...]]]) -> Tree:
    """The leaves of a batch, with a JaggedTensor for each leaf that varies in its first dimension.

    leaves: dtype and shape of each leaf of a sample. The batch is unchanged if no leaf varies,
    and if it has another number of leaves. Raises Invalid if a leaf that varies is not
    (padded, lengths).
    """
    # Each leaf that varies has two leaves in the batch. If the number of leaves differs from that,
    # the batch is wrong, and the comparison of its leaves reports the error better.
    varying = [shape[:1] == (VARIES,) for _, shape in leaves]
    flat = optree.tree_leaves(batch)
    if not any(varying) or len(flat) != len(varying) + sum(varying):
        return batch
    remaining = iter(flat)
    return [
        _without_padding(next(remaining), next(remaining)) if varies else next(remaining)
        for varies in varying
    ]


def longest_lengths(batch: Tree) -> np.ndarray:
    """Length of each sample's longest leaf in a batch with JaggedTensor leaves: (batch,) int64."""
    leaves = [leaf for leaf in optree.tree_leaves(batch) if isinstance(leaf, JaggedTensor)]
    return torch.stack([leaf.lengths for leaf in leaves]).amax(dim=0).numpy()


def _collate_column(column: list[Any], collate: Callable[[list[torch.Tensor]], Any]) -> Any:
    if not getattr(column[0], "ndim", 0):
        return default_collate(column)
    return collate([torch.as_tensor(leaf) for leaf in column])


def _join(tensors: list[torch.Tensor]) -> JaggedTensor:
    # torch.cat would convert other dtypes silently.
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError("the samples have different dtypes")
    return JaggedTensor(torch.cat(tensors), torch.tensor([len(tensor) for tensor in tensors]))


def _without_padding(padded: Any, lengths: Any) -> JaggedTensor:
    tensors = isinstance(padded, torch.Tensor) and isinstance(lengths, torch.Tensor)
    if not tensors or lengths.dtype != torch.int64 or padded.shape[:1] != lengths.shape:
        raise Invalid("a leaf of variable length must be (padded, int64 lengths)")
    if padded.ndim < 2:
        raise Invalid("a leaf of variable length has no dimension to pad")
    padded, lengths = padded.detach().cpu(), lengths.cpu()
    low, high, width = int(lengths.min()), int(lengths.max()), padded.shape[1]
    if low < 0 or high > width:
        raise Invalid(f"the lengths of a batch are {low} to {high}, but it is padded to {width}")
    return JaggedTensor(padded[torch.arange(width) < lengths[:, None]], lengths)


def write_ragged(folder: Path, chunks: Iterable[Tree], samples: Any, ragged: bool) -> None:
    """Write chunks with JaggedTensor leaves; leaves of equal lengths become plain arrays.

    samples: the source of the chunks; its `texts` says which leaves are texts. Raises SamplesDiffer
    if other leaves differ in length and `ragged` is False.
    """
    # Which leaves differ in length is known only after the last chunk, so all files stay open until
    # then. Which leaves of a stream are texts is known from its first chunk.
    with ExitStack() as stack:
        files: list[_LeafFile] = []
        for chunk in chunks:
            leaves, structure = pytree.tree_flatten(chunk)
            if not files:
                (folder / STRUCTURE).write_text(structure_text(structure, FORMAT_NAME))
                files = [_open_leaf(folder, number, stack) for number in range(len(leaves))]
            for file, leaf in zip(files, leaves, strict=True):
                file.append(leaf)
        for file, is_text in zip(files, samples.texts or [False] * len(files), strict=True):
            file.finish(is_text, ragged)


def open_ragged(folder: Path, tree: Tree) -> Tree:
    """The tree of a store, with RaggedRows in place of the values that have offsets.

    Raises BadData, naming the file, for offsets that don't rise from 0 to the number of values.
    """
    leaves, structure = pytree.tree_flatten(tree)
    opened = [_open_rows(folder, number, leaf) for number, leaf in enumerate(leaves)]
    return structure.unflatten(opened)


def select_rows(leaf: Any, like: Any, indices: list[int]) -> torch.Tensor | JaggedTensor:
    """Rows of a leaf of a store, in the form of `like`, the same leaf of a batch of the dataset."""
    if not isinstance(like, JaggedTensor):
        plain = leaf.values if isinstance(leaf, RaggedRows) else leaf
        return torch.from_numpy(plain[indices])
    if isinstance(leaf, RaggedRows):
        spans = [(int(leaf.offsets[index]), int(leaf.offsets[index + 1])) for index in indices]
        rows = [torch.from_numpy(np.array(leaf.values[start:end])) for start, end in spans]
    else:
        rows = [torch.from_numpy(np.atleast_1d(leaf[index])) for index in indices]
    return JaggedTensor(torch.cat(rows), torch.tensor([len(row) for row in rows]))


@dataclass
class _LeafFile:
    """The file of a leaf while it is written."""

    path: Path
    file: BinaryIO
    lengths: list[np.ndarray] = field(default_factory=list)
    count: int = 0
    last: np.ndarray | None = None

    def append(self, leaf: torch.Tensor | JaggedTensor) -> None:
        """Write the leaf's rows."""
        values = leaf
        if isinstance(leaf, JaggedTensor):
            self.lengths.append(leaf.lengths.numpy())
            values = leaf.values
        array = np.ascontiguousarray(array_of(values, FORMAT_NAME, "nothing"))  # pyright: ignore[reportArgumentType]
        if self.last is None:
            write_header(self.file, array, array.shape)
        self.file.write(array.data)
        self.count, self.last = self.count + len(array), array[:0]

    def finish(self, is_text: bool, ragged: bool) -> None:
        """Write the header, and the offsets if lengths differ."""
        assert self.last is not None
        shape: tuple[int, ...] = (self.count, *self.last.shape[1:])
        lengths = np.concatenate(self.lengths) if self.lengths else None
        # Rows of one length need no offsets: the same bytes are a plain array of one more
        # dimension. Texts keep their offsets, which mark them as texts.
        if lengths is not None and not is_text and (lengths == lengths[0]).all():
            shape = len(lengths), int(lengths[0]), *self.last.shape[1:]
        elif lengths is not None:
            if not is_text and not ragged:
                pair = f"{lengths.min()} to {lengths.max()} rows"
                raise SamplesDiffer(f"samples differ: {pair}; {STORES_RAGGED}")
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            name = f"{self.path.stem}.{TEXT if is_text else OFFSETS}"
            np.save(self.path.with_name(name), offsets)
        self.file.seek(0)
        write_header(self.file, self.last, shape)


def _open_leaf(folder: Path, number: int, stack: ExitStack) -> _LeafFile:
    path = folder / f"{number}.npy"
    return _LeafFile(path, stack.enter_context(path.open("wb")))


def _open_rows(folder: Path, number: int, values: np.ndarray) -> Any:
    for name, is_text in ((OFFSETS, False), (TEXT, True)):
        path = folder / f"{number}.{name}"
        if path.exists():
            offsets = map_array(path, "r")
            _check_offsets(path, offsets, len(values) if values.ndim else 0)
            return RaggedRows(values, offsets, is_text)
    return values


def _check_offsets(path: Path, offsets: np.ndarray, count: int) -> None:
    """Raise BadData for offsets that don't rise from 0 to the number of values."""
    is_list = offsets.ndim == 1 and offsets.dtype == np.int64 and len(offsets) > 0
    if not is_list or offsets[0] != 0 or offsets[-1] != count or not _rise(offsets):
        raise BadData(f"{path}: broken offsets: allowed are int64 that rise from 0 to {count}")


def _rise(offsets: np.ndarray) -> bool:
    """True if no offset is smaller than the one before it."""
    # The offsets are compared part by part, each part with the first offset of the next one. A
    # comparison of all offsets at once would need as much memory again for temporary arrays.
    starts = range(0, len(offsets), CHECKED_ROWS)
    parts = (offsets[start : start + CHECKED_ROWS + 1] for start in starts)
    return all(bool((part[1:] >= part[:-1]).all()) for part in parts)
