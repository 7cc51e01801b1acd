"""Hash of each sample of a batch: 128 bits of its canonical form, the label included.

The canonical form of floats is their exact bits; if the dataset has a uint8_scale, it is the
integers from which they were decoded, as x/255 and x*(1/255) differ in 126 of 256 values in
float32.

Samples that differ in length are a JaggedTensor without padding. Each is hashed together with its
length, so that a truncated sample, or one with padding inside, has another hash.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch

from fastloop.core.trees import tree_leaves
from fastloop.core.types import Tree
from fastloop.data.ragged import JaggedTensor


def sample_hashes(batch: Tree, uint8_scale: float | None) -> np.ndarray:
    """Hash of each sample of a batch: (batch, 16) uint8."""
    return hash_columns(canonical_columns(batch, uint8_scale))


def canonical_columns(batch: Tree, uint8_scale: float | None) -> list[Any]:
    """Canonical bytes of each leaf: (batch, bytes) uint8; for a JaggedTensor a list with the length
    and bytes of each sample."""
    return [_canonical(leaf, uint8_scale) for leaf in tree_leaves(batch)]


def hash_columns(columns: list[Any]) -> np.ndarray:
    """Hash of each row of canonical columns: (rows, 16) uint8."""
    ragged = any(isinstance(column, list) for column in columns)
    rows = map(b"".join, zip(*columns, strict=True)) if ragged else np.concatenate(columns, axis=1)
    hashes = b"".join([hashlib.blake2b(row, digest_size=16).digest() for row in rows])
    return np.frombuffer(hashes, np.uint8).reshape(-1, 16)


def _canonical(
    leaf: torch.Tensor | JaggedTensor, uint8_scale: float | None
) -> np.ndarray | list[bytes]:
    """Canonical bytes of a leaf, see `canonical_columns`."""
    if isinstance(leaf, JaggedTensor):
        return _canonical_each(leaf, uint8_scale)
    leaf = leaf.detach().cpu()
    if uint8_scale is not None and leaf.is_floating_point():
        scaled = leaf.to(torch.float64).mul(uint8_scale)
        # torch rounds even the smallest batch by several threads. If the cores have other work,
        # these wait for each other for a time slice; np.rint gives the same bits in this thread.
        np.rint(scaled.numpy(), out=scaled.numpy())
        # int16, not uint8: a value outside of 0 to 255 must not wrap around into this range
        leaf = scaled.clamp(-32768, 32767).to(torch.int16)
    # not view(len, -1), which is ambiguous for a leaf without any bytes
    width = math.prod(leaf.shape[1:])
    return leaf.contiguous().view(len(leaf), width).view(torch.uint8).numpy()


def _canonical_each(leaf: JaggedTensor, uint8_scale: float | None) -> list[bytes]:
    lengths = leaf.lengths.tolist()
    # if all samples are empty, the values have no rows, and the width of a row is unknown
    rows: Any = _canonical(leaf.values, uint8_scale) if sum(lengths) else np.empty((0, 0), np.uint8)
    ends = np.cumsum(lengths)
    return [
        length.to_bytes(8) + rows[end - length : end].tobytes()
        for length, end in zip(lengths, ends, strict=True)
    ]
