"""`dataset=hf_arrow`: the user's own Hugging Face Dataset, each row a sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Strict

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.dataset_files import files_below, files_fingerprint, own_path, sample_of

LIBRARY = Library("datasets", "dataset=hf_arrow", "pip install datasets")
"""Hugging Face's library, which this option needs."""


@dataclass
class ArrowSamples:
    """The rows of a Dataset in torch format, which makes tensors of numbers."""

    dataset: Any = field(repr=False)
    """Hugging Face's Dataset in torch format."""
    path: Path
    """Folder of the Arrow files, or a single Arrow file; named in messages."""
    inputs: tuple[str, ...]
    """Names of the columns of a sample's input."""
    label: str | None
    """Name of the column of the labels; None: samples have no label."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tree:
        # The library would count a negative index from the end.
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._sample(self.dataset[index])

    def __getitems__(self, indices: list[int]) -> list[Tree]:
        return [self._sample(row) for row in self.dataset.__getitems__(indices)]

    def _sample(self, row: dict[str, Any]) -> Tree:
        """The sample of a row; raises BadData for a column with a value that is not a tensor."""
        for name, value in row.items():
            if not isinstance(value, torch.Tensor):
                kind = self.dataset.features[name]
                hint = "dataset.columns selects columns that torch's format makes tensors of"
                kind = shorten(str(kind), 100, placeholder=" …")
                raise BadData(f"{self.path}: column {name} is {kind}; {hint}")
        label = None if self.label is None else row[self.label]
        return sample_of({name: row[name] for name in self.inputs}, label)


@option
class HfArrowDataset:
    """Rows of `load_from_disk(path).with_format("torch")`, which converts integers to int64 and
    floats to float32.

    A sample is the value of the only column, or a dict of several columns. With label_column the
    sample is (inputs, label), and `inputs` has that form for the other columns.
    """

    label: ClassVar[str] = "hf_arrow"
    uint8_scale: ClassVar[None] = None
    path: str | None
    """Path of a folder that save_to_disk has written, of an .arrow file, or of a folder with .arrow
    files; None: the user has named no path, and the dataset can't be opened."""
    split: str | None
    """Name of a split of a DatasetDict; None: the path has no splits."""
    columns: Annotated[tuple[str, ...], Strict(False)] | None
    """Names of the columns that are read; None: all columns."""
    label_column: str | None
    """Name of the column of the labels; None: samples have no label."""
    ragged: bool
    """True if the lists of a column differ in length."""

    @property
    def num_classes(self) -> int | None:
        """0, which stands for the largest label + 1; None if samples have no label."""
        return None if self.label_column is None else 0

    def fetch(self) -> str:
        """A fingerprint of the files and of the columns' names.

        Raises the errors of `open`, and BadData if the torch format makes no tensor of a column.
        """
        samples = self.open()
        samples[0]
        return files_fingerprint(self.files(), self.columns, self.label_column)

    def files(self) -> list[Path]:
        """The Arrow files."""
        return files_below(self._folder(), ".arrow")

    def open(self) -> ArrowSamples:
        """The samples; each process maps the files itself.

        Raises BadData if a column is absent, if no column except the label is selected, or if there
        are no rows. Raises Unsupported for a split that does not exist.
        """
        dataset = self._load()
        names = self.columns or tuple(dataset.column_names)
        inputs = tuple(name for name in names if name != self.label_column)
        used = [*inputs, *([] if self.label_column is None else [self.label_column])]
        for name in used:
            if name not in dataset.column_names:
                known = shorten(", ".join(dataset.column_names), 80, placeholder=" …")
                raise BadData(f"{self.path}: column {name} is absent; columns are {known}")
        if not inputs:
            raise BadData(f"{self.path}: no column except label_column={self.label_column}")
        if not len(dataset):
            raise BadData(f"{self.path}: no rows")
        formatted = dataset.with_format("torch", columns=used)
        return ArrowSamples(formatted, self._folder(), inputs, self.label_column)

    def _folder(self) -> Path:
        """The folder of the Arrow files, or the single file that `path` names.

        Raises Unsupported for a split that does not exist.
        """
        content = "a folder of save_to_disk, or Arrow files"
        path = own_path(self.path, LIBRARY.option, content)
        if not (path / "dataset_dict.json").is_file():
            return path
        splits = sorted(each.name for each in path.iterdir() if each.is_dir())
        if self.split not in splits:
            allowed = ", ".join(splits)
            raise Unsupported(f"dataset.split={self.split}: {path} has the splits {allowed}")
        return path / self.split

    def _load(self) -> Any:
        """The library's Dataset; raises BadData if the files don't hold one."""
        datasets = LIBRARY.load()
        folder = self._folder()
        try:
            if (folder / "state.json").is_file():
                return datasets.load_from_disk(str(folder))
            parts = [datasets.Dataset.from_file(str(file)) for file in self.files()]
            return datasets.concatenate_datasets(parts)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{folder}: not a Dataset on disk: {error}") from error
