"""Write and read the same-data reference of a dataset: the hash of every sample.

The same-data check compares the samples that a loader delivers with these hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optree
import torch

from fastloop.core.prepared_data import PreparedData
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Leaves, Tree
from fastloop.data.chunked_reader import ChunkedReader
from fastloop.data.dataset_batches import returns_batches
from fastloop.data.decoder_agreement import difference_to_pillow
from fastloop.data.digest import (
    content_fingerprint,
    leaves_of,
    nbytes_of,
    sample_hashes,
)
from fastloop.data.ragged import difference_error, is_ragged, longest_lengths
from fastloop.data.sealed_folder import Facts

HASHES, LENGTHS = "hashes.npy", "lengths.npy"
"""Names of the files with each sample's hash, and with the length of its longest leaf."""
REFERENCE_VERSION = 6
"""Version of the reference's contents. Increase it whenever they change, so that older
references are written again."""


def write_reference(folder: Path, source: ChunkedReader) -> Facts:
    """Write the hashes and lengths of all samples into the folder, and return facts about them.

    Lengths are written only for a ragged dataset, which has samples of several lengths. Raises
    SamplesDiffer if samples differ in their tree, dtypes or shapes.
    """
    # A small array kept for each chunk would fragment the heap into holes that are too small for
    # the next chunk: a GiB of holes for a store of 4 GiB. So one array is allocated in advance.
    count = len(source.samples)
    ragged = is_ragged(source.dataset)
    hashes = np.zeros((count, 16), np.uint8)
    lengths = np.zeros(count if ragged else 0, np.int64)
    done = 0
    nbytes = 0
    kind = None
    broken: list[tuple[int, str]] = []
    classes = ClassCounter()
    for chunk in source.chunks("hashing for the same-data gate"):
        whole = np.ones(chunk.size, bool)
        whole[[index - done for index, _ in chunk.broken]] = False
        if chunk.batch is not None:
            kind = _same_kind(kind, chunk.batch, done)
            classes.update(chunk.batch)
            hashes[done : done + chunk.size][whole] = sample_hashes(
                chunk.batch, source.dataset.uint8_scale
            )
            nbytes += nbytes_of(chunk.batch)
            if ragged:
                lengths[done : done + chunk.size][whole] = longest_lengths(chunk.batch)
        broken += chunk.broken
        done += chunk.size
    tree, leaves = kind or (None, None)
    np.save(folder / HASHES, hashes)
    if ragged:
        np.save(folder / LENGTHS, lengths)
    mean_nbytes = max(1, round(nbytes / (count - len(broken))))
    scale = source.dataset.uint8_scale
    skipped = {index for index, _ in broken}
    return {
        "num_samples": count,
        "leaves": leaves,
        "tree": str(tree),
        "sample_nbytes": mean_nbytes,
        "broken": broken,
        "num_classes": classes.count,
        "content": content_fingerprint(hashes, leaves or (), scale),
        "returns_batches": returns_batches(source.samples),
        "pixels_off": difference_to_pillow(source.dataset, skipped),
    }


def reference_hashes(prepared: PreparedData) -> np.ndarray:
    """Hash of each sample of the dataset: (num_samples, 16) uint8."""
    return np.load(prepared.reference / HASHES, allow_pickle=False)


def sample_lengths(prepared: PreparedData) -> np.ndarray:
    """Length of the longest leaf of each sample of a ragged dataset: (num_samples,) int64."""
    return np.load(prepared.reference / LENGTHS, allow_pickle=False)


def _same_kind(before: tuple[Any, Leaves] | None, batch: Tree, index: int) -> tuple[Any, Leaves]:
    """The tree and the leaves of a batch; raises SamplesDiffer if they are not as before.

    before: those of previous batches; None: there are none. index: number of the first sample.
    """
    kind = optree.tree_structure(batch), leaves_of(batch)
    if before is not None and kind != before:
        pair = [leaves for _, leaves in (before, kind)]
        # The message shows the trees only if the leaves are equal.
        if pair[0] == pair[1]:
            pair = [str(tree).removeprefix("PyTreeSpec") for tree, _ in (before, kind)]
        message = f"samples differ: those before {index} are {pair[0]}, {index} is {pair[1]}"
        raise difference_error(message, [before, kind])
    return kind


MOST_CLASSES = 100_000
"""Labels above this number are not classes: a network would need one output for each."""


class ClassCounter:
    """Counts the classes in all batches: the largest label + 1."""

    def __init__(self) -> None:
        self._lowest = 0
        self._count = 0

    def update(self, batch: Tree) -> None:
        """Include the labels of a batch, if it has two leaves and one of these holds labels."""
        # Labels are int64 and have one dimension. In a tuple the first leaf is the input, so only
        # the second leaf can be the labels. optree sorts the names of a dict, so either of its
        # leaves can be the labels; the last one is tried first.
        leaves = tree_leaves(batch)
        if len(leaves) != 2:
            return
        candidates = leaves[1:] if isinstance(batch, tuple | list) else leaves[::-1]
        for labels in [leaf for leaf in candidates if _are_labels(leaf)][:1]:
            low, high = map(int, labels.aminmax())
            self._lowest = min(self._lowest, low)
            self._count = max(self._count, high + 1)

    @property
    def count(self) -> int | None:
        """Number of classes; None without labels, with negative ones, or above MOST_CLASSES."""
        return self._count if self._lowest == 0 and 0 < self._count <= MOST_CLASSES else None


@dataclass(frozen=True)
class ObservingBatches:
    """Batches, each of which is passed to `observe` before it is yielded."""

    batches: Iterable[Tree]
    observe: Callable[[Tree], None]

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType] - a TypeError is intended

    def __iter__(self) -> Iterator[Tree]:
        for batch in self.batches:
            self.observe(batch)
            yield batch


def _are_labels(leaf: object) -> bool:
    """True for a leaf that may be the labels of a batch: int64, with one dimension, not empty."""
    is_tensor = isinstance(leaf, torch.Tensor)
    return is_tensor and leaf.dtype == torch.int64 and leaf.ndim == 1 and len(leaf) > 0
