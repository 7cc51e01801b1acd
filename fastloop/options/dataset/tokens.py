"""`dataset=tokens`: windows of a flat file of uint16 tokens, as in nanoGPT."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import FilePath, PositiveInt, Strict

from fastloop.core.atomic_files import write_beside
from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.types import BadData, option
from fastloop.data.dataset_files import create_once
from fastloop.fastloader.columns.mapped_file import pack_maps, unpack_maps

SEED = 0
"""The seed of the random tokens of a generated file."""
OWN_DATA = "to read a file of your own, set dataset.path=..."
"""Advice in the error message that appears if dataset.root holds other files."""
VOCABULARY = 50_257
"""The vocabulary size of GPT-2; a generated file has random tokens below it."""
STORED_WINDOWS = 8
"""A store that would hold each token in more windows than this is refused."""


@dataclass(frozen=True, eq=False)
class TokenWindows:
    """(int64 (block_size,), int64 (block_size,)) samples; the second is shifted by one token."""

    tokens: np.ndarray
    """uint16, the memory-mapped file."""
    block_size: int
    """Number of tokens of an input."""
    stride: int
    """Number of tokens from the start of a window to the start of the next window."""

    def __len__(self) -> int:
        return (len(self.tokens) - self.block_size - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.stride
        window = torch.from_numpy(self.tokens[start : start + self.block_size + 1].astype(np.int64))
        return window[:-1], window[1:]

    def __getstate__(self) -> dict[str, Any]:
        return pack_maps(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpack_maps(state))


@option
class Tokens:
    """Windows of a file of uint16 tokens; window i begins at token i * stride.

    stride=null stands for block_size: inputs do not overlap. With stride=1, order=random reads
    random windows as nanoGPT does.
    """

    label: ClassVar[str] = "tokens"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    root: str
    """Path of the folder that contains the generated file, if `path` is None."""
    path: Annotated[FilePath, Strict(False)] | None
    """Path of the user's file of uint16 tokens; None: a file of random tokens is generated."""
    num_tokens: PositiveInt
    """Number of tokens in the generated file."""
    block_size: PositiveInt
    """Number of tokens of a sample's input. The target is the input, shifted by one token."""
    stride: PositiveInt | None
    """Number of tokens from the start of a window to the start of the next window; None:
    block_size."""

    @property
    def effective_stride(self) -> int:
        """Number of tokens from the start of a window to the start of the next one."""
        return self.stride or self.block_size

    @property
    def file(self) -> Path:
        """The user's file, or the generated one."""
        return self.path or Path(self.root) / f"tokens-{self.num_tokens}.bin"

    def fetch(self) -> str:
        """A fingerprint of the file; if path is null, a missing file is generated.

        Raises BadData if the file has an odd number of bytes, is shorter than a window or can't be
        written.
        """
        if self.path is None:
            create_once(self.file, self._make, self.root, OWN_DATA)
        size = self.file.stat().st_size
        if size % 2:
            raise BadData(f"{self.file}: {size} bytes, an odd number; a uint16 token takes two")
        if size // 2 <= self.block_size:
            tokens = f"it holds {size // 2} tokens, a window takes {self.block_size + 1}"
            raise BadData(
                f"{self.file}: {tokens} (dataset.block_size={self.block_size} and the next)"
            )
        # stride=null and stride=<block_size> give the same windows, and so the same fingerprint.
        # Existing stores were written with the fingerprint of null.
        stride = None if self.effective_stride == self.block_size else self.effective_stride
        return fingerprint("tokens", file_fingerprint(self.file), self.block_size, stride)

    def files(self) -> list[Path]:
        """The token file."""
        return [self.file]

    def reason_against_store(self) -> str:
        """The reason why a store would be too large, or an empty string.

        A store writes every window in full, with 16 bytes per token (input and target).
        """
        stride = self.effective_stride
        if self.block_size <= STORED_WINDOWS * stride:
            return ""
        exists = self.file.is_file()
        tokens = self.file.stat().st_size // 2 if exists else self.num_tokens
        windows = max(0, tokens - self.block_size - 1) // stride + 1
        store_mib, file_mib = windows * self.block_size * 16 / 2**20, tokens * 2 / 2**20
        cause = f"dataset.stride={stride} puts a token into {self.block_size // stride} windows"
        return f"{cause}: {store_mib:,.0f} MiB for a file of {file_mib:,.1f} MiB"

    def open(self) -> TokenWindows:
        """The windows, each read on access."""
        tokens = np.memmap(self.file, np.uint16, mode="r")
        return TokenWindows(tokens, self.block_size, self.effective_stride)

    def _make(self) -> None:
        generator = np.random.default_rng(SEED)
        tokens = generator.integers(VOCABULARY, size=self.num_tokens, dtype=np.uint16)
        with write_beside(self.file) as path:
            tokens.tofile(path)
