"""`dataset=texts`: text of variable length without a download: Python's own library."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt

from fastloop.files import file_fingerprint, fingerprint, written_beside
from fastloop.made import made_once
from fastloop.types import BadData, option

BETWEEN = re.compile(rb"\n\s*\n")


@dataclass(frozen=True)
class Paragraphs:
    """(int64 (length,), int) samples out of one array of bytes."""

    tokens: np.ndarray
    bounds: np.ndarray
    """Where each sample begins, and where the last one ends."""
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        tokens = self.tokens[self.bounds[index] : self.bounds[index + 1]]
        return torch.from_numpy(tokens).long(), int(self.labels[index])


@option
class Texts:
    """A paragraph of a top-level module's source is a sample, a byte a token; the label is the
    number of the module."""

    label: ClassVar[str] = "texts"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    ragged: ClassVar[bool] = True
    root: str
    count: PositiveInt | None
    max_length: PositiveInt

    @property
    def path(self) -> Path:
        """Where the npz file is."""
        size = f"{self.count or 'all'}-{self.max_length}"
        return Path(self.root) / f"texts-{platform.python_version()}-{size}.npz"

    def fetch(self) -> str:
        """A fingerprint of the npz file, which is made where it is missing.

        Raises BadData where it can't be made.
        """
        made_once(self.path, self._make, self.root)
        return fingerprint("texts", file_fingerprint(self.path))

    def files(self) -> list[Path]:
        """The npz file."""
        return [self.path]

    def open(self) -> Paragraphs:
        """All tokens in memory, a byte each; raises BadData where the file is another."""
        try:
            # Opened here: np.load leaves a file that it can't read open.
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                samples = Paragraphs(archive["tokens"], archive["bounds"], archive["labels"])
        except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            said = f"not an npz file with tokens, bounds and labels: {error}"
            raise BadData(f"{self.path}: {said}") from error
        bounds = samples.bounds
        if len(bounds) != len(samples) + 1 or bounds[-1] != len(samples.tokens):
            raise BadData(f"{self.path}: tokens, bounds and labels do not fit each other")
        return samples

    def _make(self) -> None:
        texts = list(_paragraphs())
        count = self.count or len(texts)
        if count > len(texts):
            raise BadData(f"dataset.count={count}: dataset=texts has {len(texts)} samples")
        # evenly out of all, so that few samples are as mixed as many
        chosen = [texts[number * len(texts) // count] for number in range(count)]
        cut = [text[: self.max_length] for text, _ in chosen]
        bounds = np.cumsum([0, *map(len, cut)], dtype=np.int64)
        labels = np.array([label for _, label in chosen])
        with written_beside(self.path) as beside, beside.open("wb") as file:
            np.savez(
                file, tokens=np.frombuffer(b"".join(cut), np.uint8), bounds=bounds, labels=labels
            )


def _paragraphs() -> Iterator[tuple[bytes, int]]:
    """Each paragraph and the number of its module, in the modules' order by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    public = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    paths = [path for name in public if (path := folder / f"{name}.py").is_file()]
    if not paths:
        raise BadData(f"dataset=texts: {folder} does not hold the standard library's source")
    for number, path in enumerate(paths):
        texts = BETWEEN.split(path.read_bytes())
        yield from ((text, number) for text in texts if text.strip())
