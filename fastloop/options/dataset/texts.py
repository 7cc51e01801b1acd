"""`dataset=texts`: texts of variable length, from the source of Python's standard library."""

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

from fastloop.core.atomic_files import write_beside
from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.types import BadData, option
from fastloop.data.dataset_files import create_once

OWN_DATA = "to read your own texts, name your Dataset: dataset._target_=..."
"""Advice in the error message that appears if dataset.root holds other files."""
PARAGRAPH_BREAK = re.compile(rb"\n\s*\n")
"""Pattern of the blank lines that separate paragraphs."""


@dataclass(frozen=True)
class Paragraphs:
    """Samples of texts: each is a pair of int64 (length,) tokens and an int label."""

    tokens: np.ndarray
    """uint8 (tokens,): the bytes of all samples, one after another."""
    bounds: np.ndarray
    """int64 (samples + 1,): the start of each sample in `tokens`, and the end of the last one."""
    labels: np.ndarray
    """int64 (samples,): the label of each sample."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        tokens = self.tokens[self.bounds[index] : self.bounds[index + 1]]
        return torch.from_numpy(tokens).long(), int(self.labels[index])


@option
class Texts:
    """A dataset of the paragraphs in the source of Python's standard library.

    A sample has one token for each byte, and at most `max_length` tokens. The label is the number
    of the top-level module that contains the paragraph. No download is needed.
    """

    label: ClassVar[str] = "texts"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    ragged: ClassVar[bool] = True
    root: str
    """Path of the folder that contains the npz file."""
    count: PositiveInt | None
    """Number of samples, which are spread evenly over all paragraphs; None: all paragraphs."""
    max_length: PositiveInt
    """Maximum number of tokens of a sample. Longer paragraphs are cut off."""

    @property
    def path(self) -> Path:
        """The path of the npz file."""
        # Each version of Python has another standard library, and so other samples.
        size = f"{self.count or 'all'}-{self.max_length}"
        return Path(self.root) / f"texts-{platform.python_version()}-{size}.npz"

    def fetch(self) -> str:
        """A fingerprint of the npz file, which is created if it is missing.

        Raises BadData if the file can't be created.
        """
        create_once(self.path, self._make, self.root, OWN_DATA)
        return fingerprint("texts", file_fingerprint(self.path))

    def files(self) -> list[Path]:
        """The paths of the files to read: the npz file."""
        return [self.path]

    def open(self) -> Paragraphs:
        """The samples, with all tokens in memory, one byte each.

        Raises BadData if the file has other contents.
        """
        try:
            # The file is opened here, because np.load does not close a file that it fails to read.
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                samples = Paragraphs(archive["tokens"], archive["bounds"], archive["labels"])
        except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            reason = f"not an npz file with tokens, bounds and labels: {error}"
            raise BadData(f"{self.path}: {reason}") from error
        bounds = samples.bounds
        if len(bounds) != len(samples) + 1 or bounds[-1] != len(samples.tokens):
            raise BadData(f"{self.path}: tokens, bounds and labels do not match")
        return samples

    def _make(self) -> None:
        """Write the npz file; raises BadData if there are fewer than `count` paragraphs."""
        texts = list(_paragraphs())
        count = self.count or len(texts)
        if count > len(texts):
            raise BadData(f"dataset.count={count}: dataset=texts has {len(texts)} samples")
        # The texts are selected evenly, so that a small selection is as diverse as a large one.
        selected = [texts[number * len(texts) // count] for number in range(count)]
        truncated = [text[: self.max_length] for text, _ in selected]
        bounds = np.cumsum([0, *map(len, truncated)], dtype=np.int64)
        labels = np.array([label for _, label in selected])
        with write_beside(self.path) as path, path.open("wb") as file:
            np.savez(
                file,
                tokens=np.frombuffer(b"".join(truncated), np.uint8),
                bounds=bounds,
                labels=labels,
            )


def _paragraphs() -> Iterator[tuple[bytes, int]]:
    """Yield the bytes of each paragraph, and the number of its module among the sorted names.

    Raises BadData if the source of the standard library is not installed.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    public = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    paths = [path for name in public if (path := folder / f"{name}.py").is_file()]
    if not paths:
        raise BadData(
            f"dataset=texts: {folder} does not contain the source of the standard library"
        )
    for number, path in enumerate(paths):
        texts = PARAGRAPH_BREAK.split(path.read_bytes())
        yield from ((text, number) for text in texts if text.strip())
