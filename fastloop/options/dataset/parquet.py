"""`dataset=parquet`: the user's own Parquet files, each row a sample."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import PositiveInt, Strict

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.dataset_files import files_below, files_fingerprint, own_path, sample_of
from fastloop.data.rows_of_open_file import RowGroups, RowSamples

LIBRARY = Library("pyarrow", "dataset=parquet", "pip install pyarrow")


@option
class ParquetDataset:
    """Rows of Parquet files as samples.

    A sample is the value of a single column, or a dict of the values of several columns. With
    label_column a sample is the tuple (inputs, label), and an integer label is int64. A Parquet
    file consists of row groups. A row is read by decoding its whole group. The `groups_in_memory`
    groups that were used last stay decoded.
    """

    label: ClassVar[str] = "parquet"
    uint8_scale: ClassVar[None] = None
    path: str | None
    """Path of a .parquet file, or of a folder with .parquet files; None: the user has named no
    path, and the dataset can't be opened."""
    columns: Annotated[tuple[str, ...], Strict(False)] | None
    """Names of the columns that are read; None: all columns."""
    label_column: str | None
    """Name of the column of the labels; None: samples have no label."""
    stack: bool
    """True: the columns of a sample are joined to one float32 vector. False: each column is a value
    of its own."""
    groups_in_memory: PositiveInt
    """Maximum number of decoded row groups that each process keeps."""
    ragged: bool
    """True if the lists of a column may differ in length."""

    @property
    def num_classes(self) -> int | None:
        """0, which means the largest label + 1, if samples have labels; otherwise None."""
        return None if self.label_column is None else 0

    def fetch(self) -> str:
        """The fingerprint of the files and of the settings on columns.

        Raises BadData for files that are missing or not Parquet, and for columns that are absent,
        or that contain neither numbers nor lists of numbers.
        """
        _TableReader(self).close()
        settings = self.columns, self.label_column, self.stack
        return files_fingerprint(self.files(), *settings)

    def files(self) -> list[Path]:
        """The file at `path`, or all .parquet files below that folder."""
        path = own_path(self.path, LIBRARY.option, "a .parquet file, or a folder of them")
        return files_below(path, ".parquet")

    def open(self) -> RowSamples:
        """The samples; each process opens the files itself."""
        with closing(_TableReader(self)) as reader:
            num_samples = int(reader.first_rows[-1])
        return RowSamples(self._open_reader, num_samples)

    def _open_reader(self) -> _TableReader:
        return _TableReader(self)


class _TableReader:
    """The open files of a dataset, and their row groups that were used last, decoded.

    Raises BadData for files that are not Parquet, without rows, or without suitable columns, and
    Unsupported for settings that exclude each other.
    """

    def __init__(self, dataset: ParquetDataset) -> None:
        self._dataset = dataset
        self._paths = dataset.files()
        self._files = [_open_file(path) for path in self._paths]
        self._inputs = dataset.columns or tuple(self._files[0].schema_arrow.names)
        self._inputs = tuple(name for name in self._inputs if name != dataset.label_column)
        label = [] if dataset.label_column is None else [dataset.label_column]
        self._names = [*self._inputs, *label]
        if not self._inputs:
            raise BadData(f"{self._paths[0]}: no column except label_column={dataset.label_column}")
        if dataset.stack and dataset.ragged:
            raise Unsupported("dataset.stack=true: lists that differ in length can't be stacked")
        self._groups = []
        sizes = [0]
        for path, file in zip(self._paths, self._files, strict=True):
            for name in self._names:
                _check_column(path, file.schema_arrow, name, dataset.ragged)
            for group in range(file.metadata.num_row_groups):
                self._groups.append((path, file, group))
                sizes.append(file.metadata.row_group(group).num_rows)
        self.first_rows = np.cumsum(sizes)
        """int64 (groups + 1,): the first row of each group, then the number of rows."""
        if not self.first_rows[-1]:
            raise BadData(f"{dataset.path}: no rows")
        self._rows = RowGroups(self.first_rows, self._decode, dataset.groups_in_memory)

    def read(self, indices: Sequence[int]) -> Tree:
        """The batch of the rows at `indices`, in this order.

        A leaf is a tensor or, if its lists differ in length, an array of objects.
        """
        leaves = [_numbers(column) for column in self._rows.gather(indices)]
        has_label = self._dataset.label_column is not None
        label = _as_label(leaves.pop()) if has_label else None
        if self._dataset.stack:
            vectors = [torch.as_tensor(leaf).reshape(len(leaf), -1).float() for leaf in leaves]
            return sample_of({"stacked": torch.cat(vectors, 1)}, label)
        return sample_of(dict(zip(self._inputs, leaves, strict=True)), label)

    def close(self) -> None:
        """Free the decoded row groups, and close the files."""
        self._rows.clear()
        for file in self._files:
            file.close(force=True)

    def _decode(self, number: int) -> list[np.ndarray]:
        """The decoded columns of a row group; `number` counts the groups of all files."""
        path, file, group = self._groups[number]
        table = file.read_row_group(group, columns=self._names)
        return [_array(path, name, table.column(name)) for name in self._names]


def _open_file(path: Path) -> Any:
    """The file as pyarrow's ParquetFile; raises BadData if it is not a Parquet file."""
    parquet = LIBRARY.load("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: not a Parquet file: {error}") from error


def _check_column(path: Path, schema: Any, name: str, ragged: bool) -> None:
    """Raise BadData for an absent column, or one without numbers, booleans or lists of them."""
    types = LIBRARY.load().types
    if schema.get_field_index(name) < 0:
        raise BadData(
            f"{path}: column {name} is absent; columns are {', '.join(schema.names)[:80]}"
        )
    kind = item = schema.field(name).type
    while types.is_fixed_size_list(item):
        item = item.value_type
    if types.is_list(item) or types.is_large_list(item):
        if not ragged:
            hint = "dataset.ragged=true with collate=pad takes lists of any length"
            raise BadData(f"{path}: column {name} has lists without a fixed length; {hint}")
        item = item.value_type
    if not (types.is_integer(item) or types.is_floating(item) or types.is_boolean(item)):
        hint = "dataset.columns selects columns of numbers, booleans and lists of them"
        raise BadData(f"{path}: column {name} is {kind}; {hint}")


def _array(path: Path, name: str, column: Any) -> np.ndarray:
    """A column as an array with one item per row.

    Lists of a fixed length become further dimensions. Lists without a fixed length become arrays in
    an array of objects. Raises BadData for missing values.
    """
    types = LIBRARY.load().types
    values = column.combine_chunks()
    shape = []
    while True:
        if values.null_count:
            raise BadData(f"{path}: column {name} has missing values; fill them, or leave it out")
        if not types.is_fixed_size_list(values.type):
            break
        shape.append(values.type.list_size)
        values = values.flatten()
    if not (types.is_list(values.type) or types.is_large_list(values.type)):
        return values.to_numpy(zero_copy_only=False).reshape(-1, *shape)
    rows = np.empty(len(values), object)
    bounds = (values.offsets.to_numpy() - values.offsets[0].as_py()).tolist()
    items = values.flatten().to_numpy(zero_copy_only=False)
    for row in range(len(values)):
        rows[row] = items[bounds[row] : bounds[row + 1]]
    return rows


def _numbers(column: np.ndarray) -> torch.Tensor | np.ndarray:
    """The column as a tensor; an array of objects stays as it is."""
    return column if column.dtype == object else torch.from_numpy(column)


def _as_label(column: Any) -> Any:
    """The labels; integers become int64, the dtype that torch's losses require."""
    is_integer = isinstance(column, torch.Tensor) and not column.is_floating_point()
    return column.long() if is_integer else column
