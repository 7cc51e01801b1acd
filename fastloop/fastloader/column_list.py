"""A list of columns, which differs from a list of samples by its type."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree


class ColumnList(list):
    """A list of columns: FastLoader's batches of it are lists of their rows.

    Any other list is a Dataset of samples, as DataLoader reads it. `open_store`
    returns this one for the store of a Dataset of samples that are tuples or lists.
    """


def mark_columns(tree: Any) -> Any:
    """The tree of columns, in which a list has become a ColumnList, for FastLoader."""
    return ColumnList(tree) if type(tree) is list else tree


# tree_map of a tree of columns then returns a ColumnList, too.
pytree.register_pytree_node(
    ColumnList,
    lambda columns: (list(columns), None),
    lambda columns, _: ColumnList(columns),
    serialized_type_name="fastloop.fastloader.column_list.ColumnList",
)
