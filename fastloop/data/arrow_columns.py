"""Leaves of batches as columns of Arrow tables: values, or lists of fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import Tree, Unsupported
from fastloop.data.store_leaves import array_of


def table_of(pyarrow: Any, batch: Tree, option: str, alternative: str) -> Any:
    """A pyarrow Table of the batch: leaf k is the column `k`.

    pyarrow: the imported module. Raises Unsupported, which names `option` and `alternative`, for
    dtypes that Arrow lacks and for rows without values.
    """
    leaves = pytree.tree_leaves(batch)
    columns = [_column(pyarrow, leaf, option, alternative) for leaf in leaves]
    return pyarrow.table(columns, names=[str(number) for number in range(len(columns))])


def array_of_column(column: Any, shape: list[int]) -> np.ndarray:
    """The rows of a column that `table_of` has made; read-only unless they had to be converted.

    shape: shape of a row.
    """
    chunk = column.combine_chunks()
    values = chunk.flatten() if shape else chunk
    return values.to_numpy(zero_copy_only=False).reshape(-1, *shape)


def _column(pyarrow: Any, leaf: torch.Tensor, option: str, alternative: str) -> Any:
    """The Arrow array of a leaf: values if rows have no dimension, else lists of fixed length."""
    array = array_of(leaf, option, alternative)
    length = int(np.prod(array.shape[1:]))
    try:
        values = pyarrow.array(array.reshape(-1))
    except (NotImplementedError, ValueError, TypeError) as error:
        raise Unsupported(f"{option} can't hold {array.dtype}; {alternative} can") from error
    if array.ndim == 1:
        return values
    if not length:
        raise Unsupported(f"{option} can't hold empty rows; {alternative} can")
    return pyarrow.FixedSizeListArray.from_arrays(values, length)
