"""`dataset=zarr`: the user's own Zarr arrays, each row a sample."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Strict

from fastloop.core.fingerprints import edge_digest, fingerprint
from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, option
from fastloop.data.dataset_files import own_path, sample_of
from fastloop.data.rows_of_open_file import RowSamples

LIBRARY = Library("zarr", "dataset=zarr", "pip install zarr")
KINDS = "biufc"
"""numpy's kinds of booleans, integers, floats and complex numbers."""
READ_FILES = 64
"""Maximum number of files with contents that are a part of the fingerprint."""


@option
class ZarrDataset:
    """Rows of a Zarr array, or of the arrays of a group, as samples.

    A sample is the row of a single array, or a dict if there are several arrays. With label_array
    it is (inputs, label), and an integer label is int64. Reading a row decompresses the chunks that
    hold it.
    """

    label: ClassVar[str] = "zarr"
    uint8_scale: ClassVar[None] = None
    path: str | None
    """Path of the folder of an array or a group; None: the user has named no path, and the dataset
    can't be opened."""
    arrays: Annotated[tuple[str, ...], Strict(False)] | None
    """Names of the arrays that are read; None: all arrays."""
    label_array: str | None
    """Name of the array of the labels; None: samples have no label."""

    @property
    def num_classes(self) -> int | None:
        """0, which stands for the largest label + 1; None if samples have no label."""
        return None if self.label_array is None else 0

    def fetch(self) -> str:
        """A fingerprint of the files and of the arrays.

        Raises BadData for arrays that are absent, that differ in length, or are not of numbers.
        """
        _ArraysReader(self).close()
        files = sorted(each for each in self._path().rglob("*") if each.is_file())
        stats = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files]
        contents = [edge_digest(each) for each in files[:: -(-len(files) // READ_FILES) or 1]]
        return fingerprint("zarr", stats, contents, self.arrays, self.label_array)

    def files(self) -> list[Path]:
        """The folder of the array or the group."""
        return [self._path()]

    def open(self) -> RowSamples:
        """The samples; each process opens the arrays itself."""
        with closing(_ArraysReader(self)) as reader:
            num_samples = reader.num_samples
        return RowSamples(self._open_reader, num_samples)

    def _path(self) -> Path:
        return own_path(self.path, LIBRARY.option, "the folder of a Zarr array or group")

    def _open_reader(self) -> _ArraysReader:
        return _ArraysReader(self)


class _ArraysReader:
    """The user's arrays, opened for reading."""

    def __init__(self, dataset: ZarrDataset) -> None:
        path = own_path(dataset.path, LIBRARY.option, "the folder of a Zarr array or group")
        arrays = _open_arrays(path)
        names = list(dataset.arrays or arrays)
        if dataset.label_array is not None:
            names = [*(name for name in names if name != dataset.label_array), dataset.label_array]
        for name in names:
            _check_array(path, arrays, name)
        lengths = {name: arrays[name].shape[0] for name in names}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise BadData(f"{path}: arrays differ in length: {counts}; see dataset.arrays")
        self.num_samples = lengths[names[0]]
        if not self.num_samples:
            raise BadData(f"{path}: no rows")
        self._has_label = dataset.label_array is not None
        self._arrays = [(name, arrays[name]) for name in names]

    def read(self, indices: Sequence[int]) -> Tree:
        """The rows of these indices, in their order."""
        # Sorted rows are read at once, so each chunk is read once for all of its rows.
        rows, inverse = np.unique(np.asarray(indices), return_inverse=True)
        leaves = {
            name: torch.from_numpy(np.asarray(array.oindex[rows])[inverse])
            for name, array in self._arrays
        }
        if not self._has_label:
            return sample_of(leaves, None)
        label = leaves.pop(self._arrays[-1][0])
        return sample_of(leaves, label if label.is_floating_point() else label.long())

    def close(self) -> None:
        """End the threads of zarr, which start again when something is read."""
        LIBRARY.load("zarr.core.sync").cleanup_resources()


def _open_arrays(path: Path) -> dict[str, Any]:
    zarr = LIBRARY.load()
    try:
        opened = zarr.open(str(path), mode="r")
        if isinstance(opened, zarr.Group):
            return dict(sorted(opened.arrays()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadData(f"{path}: not a Zarr array or group: {error}") from error
    return {"array": opened}


def _check_array(path: Path, arrays: dict[str, Any], name: str) -> None:
    if name not in arrays:
        known = ", ".join(arrays)[:80] or "none"
        raise BadData(f"{path}: array {name} is absent; arrays are {known}")
    array = arrays[name]
    if not array.ndim or np.dtype(array.dtype).kind not in KINDS:
        hint = "dataset.arrays selects arrays of numbers with a row for each sample"
        raise BadData(f"{path}: array {name} is {array.dtype}{list(array.shape)}; {hint}")
