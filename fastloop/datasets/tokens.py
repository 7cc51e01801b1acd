"""`dataset=tokens`: a flat file of uint16 tokens, read in windows as nanoGPT trains on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import FilePath, PositiveInt, Strict

from fastloop.files import file_fingerprint, fingerprint, written_beside
from fastloop.made import made_once
from fastloop.types import BadData, option

SEED = 0
VOCABULARY = 50_257
"""GPT-2's; the file that is made holds random ones of these."""
STORED_WINDOWS = 8
"""A store that holds each token in more windows than these is refused."""


@dataclass(frozen=True)
class Windows:
    """(int64 (block_size,), int64 (block_size,)) samples, the second a token further on."""

    path: Path
    block_size: int
    stride: int

    def __len__(self) -> int:
        return (len(self.tokens) - self.block_size - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.stride
        window = torch.from_numpy(self.tokens[start : start + self.block_size + 1].astype(np.int64))
        return window[:-1], window[1:]

    def __reduce__(self) -> tuple[type[Windows], tuple[Path, int, int]]:
        # numpy pickles a memory map as all of its bytes: another process maps the file itself
        return Windows, (self.path, self.block_size, self.stride)

    @cached_property
    def tokens(self) -> np.ndarray:
        """The file, mapped into memory."""
        return np.memmap(self.path, np.uint16, mode="r")


@option
class Tokens:
    """Window i begins at token i * stride: order=random gives nanoGPT's random windows."""

    label: ClassVar[str] = "tokens"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    root: str
    path: Annotated[FilePath, Strict(False)] | None
    num_tokens: PositiveInt
    block_size: PositiveInt
    stride: PositiveInt | None

    @property
    def file(self) -> Path:
        """The user's file, or where one is made."""
        return self.path or Path(self.root) / f"tokens-{self.num_tokens}.bin"

    def fetch(self) -> str:
        """A fingerprint of the file, which is made where path is null and it is missing.

        Raises BadData where it holds no whole tokens or fewer than a window, or can't be written.
        """
        if self.path is None:
            made_once(self.file, self._make, self.root)
        size = self.file.stat().st_size
        if size % 2:
            raise BadData(f"{self.file}: {size} bytes are an odd number, a uint16 token takes two")
        if size // 2 <= self.block_size:
            held = f"it holds {size // 2} tokens, a window takes {self.block_size + 1}"
            raise BadData(
                f"{self.file}: {held} (dataset.block_size={self.block_size} and the next)"
            )
        return fingerprint("tokens", file_fingerprint(self.file), self.block_size, self.stride)

    def files(self) -> list[Path]:
        """The file of tokens."""
        return [self.file]

    def overlap(self) -> str:
        """Why a store would be too large: every window is written whole, of a token 16 bytes."""
        stride = self.stride or self.block_size
        if self.block_size <= STORED_WINDOWS * stride:
            return ""
        there = self.file.is_file()
        tokens = self.file.stat().st_size // 2 if there else self.num_tokens
        windows = max(0, tokens - self.block_size - 1) // stride + 1
        written, read = windows * self.block_size * 16 / 2**20, tokens * 2 / 2**20
        each = f"dataset.stride={stride} puts a token into {self.block_size // stride} windows"
        return f"{each}: {written:,.0f} MiB for a file of {read:,.1f} MiB"

    def open(self) -> Windows:
        """The windows, each read when it is asked for."""
        return Windows(self.file, self.block_size, self.stride or self.block_size)

    def _make(self) -> None:
        generator = np.random.default_rng(SEED)
        tokens = generator.integers(VOCABULARY, size=self.num_tokens, dtype=np.uint16)
        with written_beside(self.file) as beside:
            tokens.tofile(beside)
