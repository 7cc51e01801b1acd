"""The same-data gate: is what the step receives what the dataset holds, sample by sample?

Each (canonical sample, label) is hashed to 128 bits; a batch of samples is the sum of its hashes
modulo 2^128, which does not depend on their order and counts repetitions. Canonical floats are the
integers that they were decoded from where the dataset says so (x/255 and x*(1/255) differ in 126 of
256 values in float32), exact bits otherwise.

Of samples that differ in length the padding is taken off, and what is left is hashed with its
length: a sample that is cut short, padded inside or told a wrong length is another one. What the
padding holds is not looked at.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from fastloop.files import fingerprint
from fastloop.ragged import VARIES, Joined, unpadded
from fastloop.trees import tree_leaves
from fastloop.types import Invalid, Leaves, Tree

HELD_BATCHES = 8
"""Batches held before they are hashed: a loader that reuses a buffer that is still held is
caught."""

ENDLESS_SAMPLES, ENDLESS_REPEATS = 100_000, 100
"""An epoch that has not ended after so many samples, each of which has come so often, has no end.
"""


@dataclass(frozen=True)
class Digest:
    """What an epoch delivered."""

    count: int
    total: int
    """Sum of the samples' hashes modulo 2^128."""
    leaves: Leaves
    """dtype and shape of each leaf of a sample; VARIES first where the samples differ in it."""
    last: bytes = b""
    """The last sample's hash, of an epoch that has come."""


def leaves_of(batch: Tree) -> Leaves:
    """dtype and shape of each leaf, the batch dimension left out."""
    leaves = tree_leaves(batch)
    wrong = [
        leaf for leaf in leaves if not isinstance(leaf, torch.Tensor | Joined) or not leaf.ndim
    ]
    if wrong or len({len(leaf) for leaf in leaves}) != 1:
        kinds = Counter(f"{type(one).__name__}{list(getattr(one, 'shape', []))}" for one in leaves)
        told = [kind if times == 1 else f"{kind} x {times}" for kind, times in kinds.items()]
        raise Invalid(f"a batch is tensors of one length, not ({', '.join(told)})")
    return tuple((str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape[1:])) for leaf in leaves)


def nbytes_of(batch: Tree) -> int:
    """Bytes of a batch as the step receives it, padding left out."""
    return sum(leaf.nbytes for leaf in tree_leaves(batch))


def row_nbytes(leaves: Leaves) -> int:
    """Bytes of a sample with these leaves, none of which varies in length."""
    return sum(int(np.prod(shape)) * getattr(torch, dtype).itemsize for dtype, shape in leaves)


def sample_hashes(batch: Tree, uint8_scale: float | None) -> np.ndarray:
    """(batch, 16) uint8: the hash of each sample of a batch."""
    leaves = tree_leaves(batch)
    columns: list[Any] = [_canonical(leaf, uint8_scale) for leaf in leaves]
    ragged = any(isinstance(leaf, Joined) for leaf in leaves)
    rows = map(b"".join, zip(*columns, strict=True)) if ragged else np.concatenate(columns, axis=1)
    hashes = b"".join([hashlib.blake2b(row, digest_size=16).digest() for row in rows])
    return np.frombuffer(hashes, np.uint8).reshape(-1, 16)


def digest(
    batches: Iterable[Tree],
    uint8_scale: float | None,
    wanted: Leaves = (),
    at_most: int | None = None,
) -> Digest:
    """The digest of an epoch, each batch hashed only after the next eight have come.

    wanted: where a leaf of these varies in length, the batches have (padded, lengths) in its place.
    Raises Invalid where the batches' leaves differ from each other or are no batch, and as soon as
    more than `at_most` samples have come: there may be no end.
    """
    count, total, leaves, last = 0, 0, (), b""
    for leaves, hashes in _hashed(batches, uint8_scale, wanted):  # noqa: B007 - the last are all of them
        count += len(hashes)
        total += sum_of(hashes)
        last = hashes[-1].tobytes() if len(hashes) else last
        if at_most is not None and count > at_most:
            raise Invalid(f"it yields more than {at_most:,} samples an epoch")
    return Digest(count, total % 2**128, leaves, last)


def epoch_hashes(batches: Iterable[Tree], uint8_scale: float | None) -> tuple[np.ndarray, Leaves]:
    """(samples, 16) uint8, the hash of each sample of an epoch that nothing else is known of.

    Raises Invalid as `digest` does, for an epoch without samples, and for one without a length
    whose samples come again and again.
    """
    look_at = math.inf if _has_length(batches) else ENDLESS_SAMPLES
    parts, count, leaves = [], 0, ()
    for leaves, hashes in _hashed(batches, uint8_scale):  # noqa: B007
        parts.append(hashes)
        count += len(hashes)
        if count >= look_at:
            parts, look_at = [np.concatenate(parts)], 2 * count
            distinct = len(np.unique(parts[0].view("<u8")[:, 0]))
            if count > ENDLESS_REPEATS * distinct:
                said = f"{count:,} samples came, {distinct:,} different ones"
                raise Invalid(f"it yields the same again and again, without an end: {said}")
    if not count:
        raise Invalid("it yields nothing")
    return np.concatenate(parts), leaves


def expected(hashes: np.ndarray, leaves: Leaves, kept: np.ndarray | None = None) -> Digest:
    """The digest of those samples (all, or the kept indices) of a reference of shape (n, 16)
    uint8."""
    chosen = hashes if kept is None else hashes[kept]
    return Digest(len(chosen), sum_of(chosen) % 2**128, leaves)


def content_of(hashes: np.ndarray, leaves: Leaves, uint8_scale: float | None) -> str:
    """The same for the same samples in any order: (n, 16) uint8 hashes, whose canonical form is of
    that scale."""
    seen = expected(hashes, leaves)
    return fingerprint(seen.count, seen.total, seen.leaves, uint8_scale)


def sum_of(hashes: np.ndarray) -> int:
    """The sum of (n, 16) uint8 hashes, not yet modulo 2^128."""
    words = np.ascontiguousarray(hashes).view("<u4").astype(np.uint64).sum(axis=0)
    return sum(int(word) << (32 * place) for place, word in enumerate(words))


def difference(wanted: Digest, got: Digest) -> str | None:
    """What is wrong with what came, in words; None where it is the same data."""
    if not got.count and wanted.count:
        return "it yields nothing"
    if got.leaves != wanted.leaves:
        return f"dtypes and shapes are {_shown(got.leaves)}, not {_shown(wanted.leaves)}"
    if got.count != wanted.count:
        return f"{got.count} samples came, not {wanted.count}"
    if got.total != wanted.total:
        return "the samples or their labels are not the dataset's"
    return None


def _shown(leaves: Leaves) -> str:
    told = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in leaves)
    return told.replace(f"[{VARIES}", "[*") or "nothing"


def _hashed(
    batches: Iterable[Tree], uint8_scale: float | None, wanted: Leaves = ()
) -> Iterator[tuple[Leaves, np.ndarray]]:
    leaves = None
    for batch in (unpadded(one, wanted) for one in _held(batches)):
        found = leaves_of(batch)
        if leaves is not None and found != leaves:
            raise Invalid(f"batches differ: {_shown(leaves)} and {_shown(found)}")
        leaves = found
        yield found, sample_hashes(batch, uint8_scale)


def _has_length(batches: Iterable[Tree]) -> bool:
    try:
        len(batches)  # pyright: ignore[reportArgumentType]
    except (TypeError, NotImplementedError):
        return False
    return True


def _held(batches: Iterable[Tree]) -> Iterator[Tree]:
    held: deque[Any] = deque()
    for batch in batches:
        held.append(batch)
        if len(held) > HELD_BATCHES:
            yield held.popleft()
    yield from chain(held)


def _canonical(leaf: torch.Tensor | Joined, uint8_scale: float | None) -> np.ndarray | list[bytes]:
    """(batch, bytes) uint8 of a leaf; of a Joined one, the length and the bytes of each sample."""
    if isinstance(leaf, Joined):
        return _canonical_each(leaf, uint8_scale)
    leaf = leaf.detach().cpu()
    if uint8_scale is not None and leaf.is_floating_point():
        # int16, so that a value outside of the byte's range can't wrap back into it
        leaf = leaf.to(torch.float64).mul(uint8_scale).round().clamp(-32768, 32767).to(torch.int16)
    width = math.prod(leaf.shape[1:])  # which -1 can't tell of a leaf without any bytes
    return leaf.contiguous().view(len(leaf), width).view(torch.uint8).numpy()


def _canonical_each(leaf: Joined, uint8_scale: float | None) -> list[bytes]:
    lengths = leaf.lengths.tolist()
    # all samples may be empty, and then a view does not tell the width of a row
    rows: Any = _canonical(leaf.values, uint8_scale) if sum(lengths) else np.empty((0, 0), np.uint8)
    ends = np.cumsum(lengths)
    return [
        length.to_bytes(8) + rows[end - length : end].tobytes()
        for length, end in zip(lengths, ends, strict=True)
    ]
