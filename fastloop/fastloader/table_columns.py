"""Tables as trees of their columns: pandas', Arrow's and Hugging Face's, none of which is imported.

Arrow's numbers are not copied: they stay in memory or in a mapped file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastloop.fastloader.columns.chunked_rows import ChunkedRows

SAME_AS_SAMPLES = {
    None: {"int64", "double", "bool"},
    "torch": {"int64", "float", "bool"},
}
"""Arrow's types that samples of a Hugging Face dataset keep as they are, by the dataset's
format."""


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
    the same dtypes; None for anything else, also if its rows were selected or shuffled."""
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
    while not is_scalar_only and hasattr(kind, "list_size"):
        kind = kind.value_type
    return str(kind) in kept and not column.null_count


def _arrow_column(name: str, column: Any) -> Any:
    """The rows as an array, or as a column of several arrays; raises ValueError without rows."""
    chunks = getattr(column, "chunks", [column])
    arrays = [_arrow_rows(name, chunk) for chunk in chunks if len(chunk)]
    if not arrays:
        raise ValueError(f"the column {name!r} has no rows")
    return arrays[0] if len(arrays) == 1 else ChunkedRows(arrays)


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
    columns = table.items() if hasattr(table, "columns") else [(table.name, table)]
    arrays = {str(name): column.to_numpy() for name, column in columns}
    for name, values in arrays.items():
        if values.dtype.kind not in "buif":
            raise ValueError(_describe_column(name, values.dtype))
    return arrays if hasattr(table, "columns") else next(iter(arrays.values()))


def _describe_column(name: str, kind: Any) -> str:
    allowed = "a table is read by columns of numbers or booleans; encode or drop it"
    return f"the column {name!r} has values of type {kind}: {allowed}"
