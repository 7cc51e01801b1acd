"""Write and read the same-data reference of a dataset: the hash of every sample.

The same-data check compares the samples that a loader delivers with these hashes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optree

from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Leaves, Tree
from fastloop.data.chunked_reader import ChunkedReader
from fastloop.data.class_counts import ClassCounter
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
    scale = source.dataset.uint8_scale
    hashes = np.zeros((count, 16), np.uint8)
    lengths = np.zeros(count if ragged else 0, np.int64)
    done, nbytes, kind = 0, 0, None
    broken: list[tuple[int, str]] = []
    classes = ClassCounter()
    for chunk in source.chunks("hashing for the same-data gate"):
        start, done = done, done + chunk.size
        broken += chunk.broken
        # No sample of the chunk could be decoded.
        if chunk.batch is None:
            continue
        is_decoded = np.ones(chunk.size, bool)
        is_decoded[[index - start for index, _ in chunk.broken]] = False
        kind = _same_kind(kind, chunk.batch, start)
        hashes[start:done][is_decoded] = sample_hashes(chunk.batch, scale)
        if ragged:
            lengths[start:done][is_decoded] = longest_lengths(chunk.batch)
        nbytes += nbytes_of(chunk.batch)
        classes.update(chunk.batch)
    tree, leaves = kind or (None, None)
    np.save(folder / HASHES, hashes)
    if ragged:
        np.save(folder / LENGTHS, lengths)
    return {
        "num_samples": count,
        "leaves": leaves,
        "tree": str(tree),
        "sample_nbytes": max(1, round(nbytes / (count - len(broken)))),
        "broken": broken,
        "num_classes": classes.count,
        "content": content_fingerprint(hashes, leaves or (), scale),
        "returns_batches": returns_batches(source.samples),
        "pixels_off": difference_to_pillow(source.dataset, {index for index, _ in broken}),
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
