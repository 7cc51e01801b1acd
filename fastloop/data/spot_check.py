"""A check of a few samples before anything is written: is the dataset there, does it collate?"""

from __future__ import annotations

import numpy as np

from fastloop.core.protocols import Dataset, StreamingDataset
from fastloop.core.types import BadData, SamplesDiffer
from fastloop.data.chunked_reader import IndexedSamples
from fastloop.data.collate_chunk import collate_chunk
from fastloop.data.preparation import add_remedy
from fastloop.data.ragged import is_ragged

CHECKED = 16
"""Number of samples that are checked, spread evenly over the dataset."""


def check_samples(dataset: Dataset, tolerant: bool = False) -> None:
    """Fetch the dataset and collate 16 of its samples; only fetching writes files.

    tolerant: samples that can't be decoded are left out. Raises the BadData, Unsupported or OSError
    that preparing the dataset would raise for these samples.
    """
    # a streaming dataset has no samples before its loader is measured
    if isinstance(dataset, StreamingDataset):
        return
    dataset.fetch()
    samples = IndexedSamples(dataset.open(), tolerant)
    if not len(samples):
        raise BadData(f"{dataset.label}: no readable sample")
    indices = sorted({*np.linspace(0, len(samples) - 1, CHECKED).round().astype(int).tolist()})
    try:
        collate_chunk([samples[index] for index in indices], is_ragged(dataset), tolerant)
    except SamplesDiffer as error:
        raise BadData(add_remedy(str(error), dataset)) from error
