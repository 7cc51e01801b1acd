"""Same-data gate: digests that show whether a step receives exactly the dataset's samples.

Each sample, the label included, is hashed to 128 bits of its canonical form. The digest of a batch
is the sum of its hashes modulo 2^128: it does not depend on the order, but a sample that comes
twice changes it.

The canonical form of floats is their exact bits; if the dataset has a uint8_scale, it is the
integers from which they were decoded, as x/255 and x*(1/255) differ in 126 of 256 values in
float32. Samples that differ in length are a RaggedTensor without padding. Each is hashed together
with its length, so that a truncated sample, or one with padding inside, has another hash.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from fastloop.core.fingerprints import fingerprint
from fastloop.core.seeds import GOLDEN_GAMMA
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Invalid, Leaves, Tree, UnevenBatches
from fastloop.data.ragged import VARIES, RaggedTensor, remove_padding

HELD_BATCHES = 8
"""Each batch is looked at again after this many further batches. This detects a loader that reuses
the buffer of a batch still in use, or fills a batch after it has delivered it."""

INT16 = 1 << 15
"""Integers of 16 bits are below this number."""
ENDLESS_SAMPLES, ENDLESS_REPEATS = 100_000, 100
"""An epoch counts as endless if it has at least ENDLESS_SAMPLES samples, and has repeated each
distinct sample more than ENDLESS_REPEATS times on average."""


@dataclass(frozen=True)
class Digest:
    """Digest of the samples of an epoch."""

    count: int
    total: int
    """Sum of the samples' hashes modulo 2^128."""
    leaves: Leaves
    """dtype and shape of each leaf of a sample; VARIES stands for a first dimension that
    differs."""
    last: str = ""
    """Hash of the last sample delivered, in hexadecimal; empty for an expected digest."""


def leaves_of(batch: Tree) -> Leaves:
    """dtype and shape of each leaf, without the batch dimension; raises Invalid for anything but a
    batch."""
    leaves = tree_leaves(batch)
    invalid = [
        leaf
        for leaf in leaves
        if not isinstance(leaf, torch.Tensor | RaggedTensor) or not leaf.ndim
    ]
    if invalid or len({len(leaf) for leaf in leaves}) != 1:
        kinds = Counter(
            f"{type(leaf).__name__}{list(getattr(leaf, 'shape', []))}" for leaf in leaves
        )
        texts = [kind if times == 1 else f"{kind} x {times}" for kind, times in kinds.items()]
        raise UnevenBatches(f"a batch is tensors of one length, not ({', '.join(texts)})")
    return tuple((str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape[1:])) for leaf in leaves)


def nbytes_of(batch: Tree) -> int:
    """Bytes of a batch as the step receives it, without padding."""
    return sum(leaf.nbytes for leaf in tree_leaves(batch))


def row_nbytes(leaves: Leaves) -> int:
    """Bytes of a sample with these leaves, all of fixed length."""
    return sum(int(np.prod(shape)) * getattr(torch, dtype).itemsize for dtype, shape in leaves)


def digest(
    batches: Iterable[Tree],
    uint8_scale: float | None,
    expected: Leaves = (),
    at_most: int | None = None,
    observe: Callable[[np.ndarray], object] | None = None,
) -> Digest:
    """Digest of an epoch; each batch is read at delivery, and again HELD_BATCHES batches later.

    expected: leaves of a sample; batches have (padded, lengths) for leaves of variable length.
    at_most: number of samples of the epoch; None: unknown. observe: called with the (batch, 16)
    uint8 hashes of each batch. Raises Invalid if a batch changes after its delivery, if the leaves
    of batches differ or are not tensors of one length, and as soon as there are more than `at_most`
    samples.
    """
    count = 0
    total = 0
    leaves = ()
    last = ""
    for leaves, hashes in _hash_batches(batches, uint8_scale, expected):  # noqa: B007 - all are equal
        if observe is not None:
            observe(hashes)
        count += len(hashes)
        total += hash_sum(hashes)
        last = hashes[-1].tobytes().hex() if len(hashes) else last
        # This is checked at once, because the epoch may be endless.
        if at_most is not None and count > at_most:
            raise Invalid(f"it yields more than {at_most:,} samples an epoch")
    return Digest(count, total % 2**128, leaves, last)


def epoch_hashes(batches: Iterable[Tree], uint8_scale: float | None) -> tuple[np.ndarray, Leaves]:
    """Hash of each sample, (samples, 16) uint8, and leaves of a sample, of an epoch of unknown
    content.

    Raises Invalid as `digest` does, for an epoch without samples, and if `batches` has no length
    and repeats the same samples without end.
    """
    # An iterable with a length ends. The samples of any other are checked for repetitions whenever
    # their number has doubled. All checks together then take no longer than two of the last one.
    check_at = math.inf if _has_length(batches) else ENDLESS_SAMPLES
    parts = []
    count = 0
    leaves = ()
    for leaves, hashes in _hash_batches(batches, uint8_scale):  # noqa: B007
        parts.append(hashes)
        count += len(hashes)
        if count >= check_at:
            parts = [np.concatenate(parts)]
            check_at = 2 * count
            # Half of a hash distinguishes samples well enough to count them.
            distinct = len(np.unique(parts[0].view("<u8")[:, 0]))
            if count > ENDLESS_REPEATS * distinct:
                counts = f"{count:,} samples, {distinct:,} of them distinct"
                raise Invalid(f"it repeats the same samples without end: {counts}")
    if not count:
        raise Invalid("it yields nothing")
    return np.concatenate(parts), leaves


def reference_digest(
    hashes: np.ndarray, leaves: Leaves, indices: np.ndarray | None = None
) -> Digest:
    """Digest of samples of a reference.

    hashes: (n, 16) uint8 of all samples. indices: int64 of the samples to digest; None: all.
    """
    selected = hashes if indices is None else hashes[indices]
    return Digest(len(selected), hash_sum(selected) % 2**128, leaves)


def content_fingerprint(hashes: np.ndarray, leaves: Leaves, uint8_scale: float | None) -> str:
    """Fingerprint of samples, independent of their order, from their (n, 16) uint8 hashes."""
    whole = reference_digest(hashes, leaves)
    return fingerprint(whole.count, whole.total, whole.leaves, uint8_scale)


def hash_sum(hashes: np.ndarray) -> int:
    """Sum of (n, 16) uint8 hashes, not reduced modulo 2^128."""
    # Words of 32 bits are summed in 64 bits, which is exact for up to 2^32 samples.
    words = np.ascontiguousarray(hashes).view("<u4").astype(np.uint64).sum(axis=0)
    return sum(int(word) << (32 * place) for place, word in enumerate(words))


def describe_difference(expected: Digest, actual: Digest) -> str | None:
    """Describe the difference between two digests; None if they are of the same data."""
    if not actual.count and expected.count:
        return "it yields nothing"
    if actual.leaves != expected.leaves:
        return f"dtypes and shapes are {_describe(actual.leaves)}, not {_describe(expected.leaves)}"
    if actual.count != expected.count:
        return f"{actual.count} samples delivered, not {expected.count}"
    if actual.total != expected.total:
        return "the samples or their labels are not the dataset's"
    return None


def _describe(leaves: Leaves) -> str:
    text = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in leaves)
    return text.replace(f"[{VARIES}", "[*") or "nothing"


def _hash_batches(
    batches: Iterable[Tree], uint8_scale: float | None, expected: Leaves = ()
) -> Iterator[tuple[Leaves, np.ndarray]]:
    """Yield the leaves and the hashes of each batch; raises Invalid as `digest` does without
    `at_most`."""
    first = None
    for delivered in _hold_back(_Delivered(batch, uint8_scale, expected) for batch in batches):
        leaves = delivered.leaves
        first = leaves if first is None else first
        if leaves != first:
            raise UnevenBatches(f"batches differ: {_describe(first)} and {_describe(leaves)}")
        yield leaves, delivered.hashes()


class _Delivered:
    """A batch with a copy of its canonical bytes at delivery."""

    def __init__(self, batch: Tree, uint8_scale: float | None, expected: Leaves) -> None:
        self._batch = batch
        self._scale = uint8_scale
        self._expected = expected
        tree = remove_padding(batch, expected)
        self.leaves = leaves_of(tree)
        self._columns = [column.copy() for column in canonical_columns(tree, uint8_scale)]

    def hashes(self) -> np.ndarray:
        """Hash of each sample: (batch, 16) uint8; raises Invalid if the batch has changed."""
        # The columns are computed from the batch again, because the loader may have written to the
        # memory of the batch meanwhile.
        tree = remove_padding(self._batch, self._expected)
        columns = canonical_columns(tree, self._scale)
        if not all(map(np.array_equal, columns, self._columns)):
            reason = "it is filled late, or its memory is used again too early"
            raise Invalid(f"a batch changes after it was delivered: {reason}")
        return hash_columns(columns)


def _has_length(batches: Iterable[Tree]) -> bool:
    try:
        len(batches)  # pyright: ignore[reportArgumentType]
    except (TypeError, NotImplementedError):
        return False
    return True


def _hold_back(batches: Iterable[_Delivered]) -> Iterator[_Delivered]:
    """Yield each batch once HELD_BATCHES further batches have been delivered, or the epoch ends."""
    queue: deque[_Delivered] = deque()
    for batch in batches:
        queue.append(batch)
        if len(queue) > HELD_BATCHES:
            yield queue.popleft()
    yield from chain(queue)


def sample_hashes(batch: Tree, uint8_scale: float | None) -> np.ndarray:
    """Hash of each sample of a batch: (batch, 16) uint8."""
    return hash_columns(canonical_columns(batch, uint8_scale))


def canonical_columns(batch: Tree, uint8_scale: float | None) -> list[Any]:
    """Canonical bytes of each leaf: (batch, bytes) uint8; for a RaggedTensor a list with the length
    and bytes of each sample."""
    return [_canonical(leaf, uint8_scale) for leaf in tree_leaves(batch)]


def hash_columns(columns: list[Any]) -> np.ndarray:
    """Hash of each row of canonical columns: (rows, 16) uint8."""
    ragged = any(isinstance(column, list) for column in columns)
    rows = map(b"".join, zip(*columns, strict=True)) if ragged else np.concatenate(columns, axis=1)
    hashes = b"".join([hashlib.blake2b(row, digest_size=16).digest() for row in rows])
    return np.frombuffer(hashes, np.uint8).reshape(-1, 16)


def _canonical(
    leaf: torch.Tensor | RaggedTensor, uint8_scale: float | None
) -> np.ndarray | list[bytes]:
    """Canonical bytes of a leaf, see `canonical_columns`."""
    if isinstance(leaf, RaggedTensor):
        return _canonical_each(leaf, uint8_scale)
    leaf = leaf.detach().cpu()
    if uint8_scale is not None and leaf.is_floating_point():
        scaled = leaf.to(torch.float64).mul(uint8_scale)
        # torch rounds even the smallest batch in several threads. If the cores have other work,
        # these threads wait for each other; np.rint gives the same bits in this thread.
        np.rint(scaled.numpy(), out=scaled.numpy())
        leaf = torch.from_numpy(_to_int16(scaled.numpy()))
    # view(len, -1) would be ambiguous for a leaf without any bytes.
    width = math.prod(leaf.shape[1:])
    return leaf.contiguous().view(len(leaf), width).view(torch.uint8).numpy()


def _to_int16(values: np.ndarray) -> np.ndarray:
    """Whole float64 numbers as int16. NaN, and a number outside of the range of int16, become a
    negative number that depends on all bits of the original."""
    # int16 is used instead of uint8, because a number outside of 0 to 255 must not become one in
    # this range. min and max are NaN if a number is.
    if not values.size or (values.min() >= -INT16 and values.max() < INT16):
        return values.astype(np.int16)
    is_outside = ~(np.abs(values) < INT16)
    mixed = (values[is_outside].view(np.uint64) * np.uint64(GOLDEN_GAMMA)) >> np.uint64(49)
    values[is_outside] = mixed.astype(np.float64) - INT16
    return values.astype(np.int16)


def _canonical_each(leaf: RaggedTensor, uint8_scale: float | None) -> list[bytes]:
    lengths = leaf.lengths.tolist()
    # If all samples are empty, the values have no rows, and the width of a row is unknown.
    rows: Any = _canonical(leaf.values, uint8_scale) if sum(lengths) else np.empty((0, 0), np.uint8)
    ends = np.cumsum(lengths)
    return [
        length.to_bytes(8) + rows[end - length : end].tobytes()
        for length, end in zip(lengths, ends, strict=True)
    ]
