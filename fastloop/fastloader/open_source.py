"""Make a source of batches from a user's argument to FastLoader.

The argument is a tree of columns, a map-style Dataset, a list of samples, a table or an iterable.
Tables of pandas, Arrow and Hugging Face become trees of their columns; none of these libraries is
imported. Arrow's numbers are not copied: they stay in memory or in a mapped file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import (
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fastloop.fastloader.column_source import ColumnSource, column_source
from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.columns.chunked import ChunkedColumn, is_library_array
from fastloop.fastloader.columns.column import Column, ColumnList, Tree
from fastloop.fastloader.columns.ragged_rows import RaggedRows, RaggedTree, is_ragged_tree
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.recognise_image_arrays import recognise_arrays
from fastloop.fastloader.recognise_image_folders import log_once, recognise_images
from fastloop.fastloader.thread_access import CollateFn, UserCode, share, take_turns

ARRAYS = torch.Tensor | np.ndarray
MOST_CHECKED = 64
"""Maximum number of items of a list that are looked at: a list may hold millions."""

SAME_AS_SAMPLES = {
    None: {"int64", "double", "bool"},
    "torch": {"int64", "float", "bool"},
}
"""Format of a Hugging Face dataset -> Arrow's types that its samples keep unchanged."""


@dataclass(frozen=True)
class ColumnDataset(Dataset):
    """The samples of columns by index, as DataLoader's attribute `dataset` gives them."""

    source: ColumnSource
    """The columns, as a source that delivers single samples in place of batches."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tree:
        """Return a sample; raises IndexError for an index out of bounds."""
        (sample,) = self.source.batches([np.array([range(len(self))[index]])])
        return sample


class ListedSamples(Dataset):
    """The samples of a list, which can be read by any number of threads."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def as_dataset(source: Any) -> Dataset:
    """The source itself if it is a Dataset or a list, else a dataset of the tree's samples."""
    if isinstance(source, Dataset) or type(source) is list:
        return source  # pyright: ignore[reportReturnType] - as DataLoader's attribute
    source = read_source(source)
    if is_ragged_tree(source):
        return RaggedTree(source)
    return source if is_dataset(source) else ColumnDataset(_without_batches(column_source(source)))


def open_source(settings: LoaderSettings) -> BatchSource | IterableSource:
    """The batches, or the single samples, of a loader's tree of columns or Dataset.

    A TensorDataset is treated as its tensors, in batches that are lists, as default_collate makes
    them. Raises ValueError for anything else, and for a collate_fn if there is nothing to collate.
    """
    source = settings.source
    collate_fn = settings.collate_fn
    default = default_convert if settings.is_unbatched else default_collate
    if isinstance(source, IterableDataset):
        return IterableSource(source, collate_fn or default, settings.workers)
    # A user's collate_fn may take any items.
    if collate_fn is None:
        check_samples(source)
    source = _columns_of_samples(settings) or read_source(source)
    if is_ragged_tree(source):
        return _open_ragged(RaggedTree(source), settings)
    if is_dataset(source):
        return _open_dataset(source, collate_fn or default, settings)
    if collate_fn is not None:
        raise ValueError("collate_fn is for a Dataset's samples; transform= takes a tree's batches")
    columns = column_source(source)
    is_single = settings.is_unbatched and not settings.asks_for_lists
    return _without_batches(columns) if is_single else columns


def count_samples(source: BatchSource | IterableSource) -> int | None:
    """The number of samples; None if an iterable does not say."""
    return source.num_samples if isinstance(source, IterableSource) else len(source)


def _columns_of_samples(settings: LoaderSettings) -> Any:
    """The columns of a Dataset, if their batches are the batches of its samples; else None."""
    source = settings.source
    if settings.collate_fn is not None or settings.asks_for_lists:
        return None
    if type(source) is TensorDataset:
        return _columns_of_tensors(source)
    if settings.is_unbatched:
        return None
    images = None
    if settings.native:
        images = recognise_images(source) or recognise_arrays(source)
    return images or columns_of_hf_dataset(source)


def _columns_of_tensors(dataset: TensorDataset) -> list[Column] | None:
    """The columns of its tensors; None if it has a tensor that is not read as rows: batches of one
    that requires grad have a gradient.
    """
    try:
        columns = [array_column(tensor) for tensor in dataset.tensors]
    except (AttributeError, ValueError) as reason:
        log_once(f"TensorDataset is read through its own __getitem__: {reason}")
        return None
    # A program may have replaced a tensor by one of another length. A TensorDataset without tensors
    # has no length.
    has_one_length = len({len(column) for column in columns}) == 1
    # A list, as default_collate makes of tuples: a tuple would be delivered as a tuple.
    return [*columns] if has_one_length else None


def _open_ragged(tree: RaggedTree, settings: LoaderSettings) -> DatasetSource:
    """The source of a ragged tree, which has rows of several lengths: of its batches, or of its
    samples if there is a collate_fn, or if single samples are delivered."""
    collate_fn = settings.collate_fn or default_convert
    makes_batches = settings.collate_fn is None and not settings.is_unbatched
    code = UserCode(tree, collate_fn)
    return DatasetSource(
        code,
        settings.is_unbatched,
        share(code),
        is_thread_safe=True,
        reads_lists=makes_batches or settings.asks_for_lists,
    )


def _open_dataset(dataset: Any, collate_fn: CollateFn, settings: LoaderSettings) -> DatasetSource:
    # Items of a list are only referred to: the code of a Dataset may be running in several threads.
    is_shared = settings.thread_safe or isinstance(dataset, ListedSamples)
    code = UserCode(dataset, collate_fn)
    return DatasetSource(
        code,
        settings.is_unbatched,
        share(code) if is_shared else take_turns(code),
        is_thread_safe=is_shared,
        reads_lists=settings.asks_for_lists,
    )


def _without_batches(source: ColumnSource) -> ColumnSource:
    """The source with its samples one by one, without a batch dimension; batches are of size 1."""
    unflatten = source.unflatten or _first
    return replace(source, unflatten=lambda leaves: unflatten([leaf[0] for leaf in leaves]))


def _first(leaves: Sequence[torch.Tensor]) -> Tree:
    return leaves[0]


def read_source(source: Any) -> Any:
    """The source as a tree of columns or as something with samples by index.

    Tables and mappings become the dict of their columns. A list becomes a Dataset, as DataLoader
    reads any list, and a ColumnList the list of its columns.
    """
    table = columns_of_table(source)
    if table is not None:
        return table
    if _is_mapping(source):
        return {name: source[name] for name in source.keys()}  # noqa: SIM118 - of zarr's group
    if type(source) is list:
        return ListedSamples(source)
    return list(source) if type(source) is ColumnList else source


def check_samples(source: Any) -> None:
    """Raise ValueError for a list of columns or of Datasets, which default_collate does not
    collate."""
    if type(source) is not list:
        return
    for item in source[:MOST_CHECKED]:
        if isinstance(item, Column | RaggedRows) or is_library_array(item):
            problem = f"a list is a Dataset of samples, and {type(item).__name__} is a column"
            raise ValueError(f"{problem}: tuple(source) means columns")
        if isinstance(item, Dataset):
            problem = f"a list is a Dataset of samples, and {type(item).__name__} is a Dataset"
            raise ValueError(f"{problem}: torch's ConcatDataset or StackDataset joins several")


def is_dataset(source: Any) -> bool:
    """True for something with samples by index that is not a tree of columns."""
    if isinstance(source, ARRAYS | Column | RaggedRows | str | bytes) or is_library_array(source):
        return False
    is_leaf = pytree.tree_structure(source).is_leaf()
    return is_leaf and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _is_mapping(source: Any) -> bool:
    """True for arrays by name that are not a dict, such as an h5py.File, a zarr group or an open
    .npz file."""
    is_leaf = pytree.tree_structure(source).is_leaf()
    has_keys = callable(getattr(source, "keys", None)) and hasattr(source, "__getitem__")
    # A user's Dataset may have keys() as well: it is read by index.
    return is_leaf and has_keys and not isinstance(source, Dataset)


def columns_of_table(source: Any) -> Any:
    """A dict of a table's columns by name, or the values of a pandas Series; None for anything
    else. Raises ValueError for a column that is not of numbers or booleans."""
    if hasattr(source, "iloc") and hasattr(source, "to_numpy"):
        return _columns_of_pandas(source)
    if type(source).__module__.startswith("pyarrow") and hasattr(source, "column_names"):
        return {name: _arrow_column(name, source.column(name)) for name in source.column_names}
    return None


def columns_of_hf_dataset(source: Any) -> Any:
    """A dict of a Hugging Face dataset's columns, if their batches are those of its samples, with
    the same dtypes; None for anything else, even if its rows were selected or shuffled."""
    if not type(source).__module__.startswith("datasets.") or not hasattr(source, "_indices"):
        return None
    kept = SAME_AS_SAMPLES.get(source.format["type"])
    # select() and shuffle() only note the new order of rows in _indices, which the columns do not
    # have.
    if kept is None or source._indices is not None or source.format["format_kwargs"]:
        return None
    columns = {name: source.data.column(name) for name in source.format["columns"]}
    is_scalar_only = source.format["type"] is None
    if not all(_is_kept(column, kept, is_scalar_only) for column in columns.values()):
        return None
    return {name: _arrow_column(name, column) for name, column in columns.items()} or None


def _is_kept(column: Any, kept: set[str], is_scalar_only: bool) -> bool:
    kind = column.type
    # With the torch format, lists of a fixed size are dimensions of the samples. Without a format,
    # they are lists of Python, from which default_collate makes something other than columns do.
    while not is_scalar_only and hasattr(kind, "list_size"):
        kind = kind.value_type
    return str(kind) in kept and not column.null_count


def _arrow_column(name: str, column: Any) -> Any:
    """The rows as an array, or as a column of several arrays; raises ValueError without rows."""
    chunks = getattr(column, "chunks", [column])
    arrays = [_arrow_rows(name, chunk) for chunk in chunks if len(chunk)]
    if not arrays:
        raise ValueError(f"the column {name!r} has no rows")
    return arrays[0] if len(arrays) == 1 else ChunkedColumn(arrays)


def _arrow_rows(name: str, array: Any) -> np.ndarray:
    if array.null_count:
        problem = f"the column {name!r} has {array.null_count} missing values"
        raise ValueError(f"{problem}: fill_null() or drop_null() the table")
    if hasattr(array.type, "list_size"):
        items = _arrow_rows(name, array.flatten())
        return items.reshape(len(array), array.type.list_size, *items.shape[1:])
    kind = str(array.type)
    if not kind.startswith(("int", "uint", "float", "halffloat", "double", "bool")):
        raise ValueError(_describe_column(name, kind))
    # Arrow packs booleans into bits, which numpy can't show without a copy.
    return array.to_numpy(zero_copy_only=kind != "bool")


def _columns_of_pandas(table: Any) -> Any:
    columns = [*table.items()] if hasattr(table, "columns") else [(table.name, table)]
    names = [str(name) for name, _ in columns]
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{count} columns are named {name!r}: rename or drop them")
    arrays = {name: column.to_numpy() for name, (_, column) in zip(names, columns, strict=True)}
    for name, values in arrays.items():
        if values.dtype.kind not in "buif":
            raise ValueError(_describe_column(name, values.dtype))
    return arrays if hasattr(table, "columns") else next(iter(arrays.values()))


def _describe_column(name: str, kind: Any) -> str:
    allowed = "a table is read by columns of numbers or booleans; encode or drop it"
    return f"the column {name!r} has values of type {kind}: {allowed}"
