"""Reading all samples of a dataset, chunk by chunk, to write a reference or a store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

from tqdm import tqdm

from fastloop.core.cgroup import usable_cores
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import note_progress
from fastloop.core.types import BadData, Tree
from fastloop.core.user_code import error_line
from fastloop.data.collate_chunk import Chunk, collate_chunk, collate_each
from fastloop.data.dataloader import decode_in_order
from fastloop.data.digest import nbytes_of
from fastloop.data.ragged import is_ragged
from fastloop.data.samples import fetch_samples

CHUNK_BYTES = 2 << 20
"""Approximate size of a chunk, which bounds the memory of writing."""
PROBED_SAMPLES = 64
"""Samples that are decoded to find out how long decoding takes."""
SAMPLES_PER_NOTE = 16
"""Progress is noted once for this many samples, and once a chunk."""
SLOW_SAMPLE_S = 20e-6
"""Decoding that takes longer per sample is spread over several processes. Measured: processes slow
down decoding that takes 3 us per sample, and speed up decoding that takes 49 us."""
SLOW_TOTAL_S = 2.0
"""Processes are not started for less decoding than this in total: it would not pay."""


@dataclass(frozen=True)
class ChunkedReader:
    """Reads a dataset in chunks; the dataset is opened on the first access only."""

    dataset: Dataset
    tolerant: bool = False
    collate: Callable[[Any], Tree] | None = None
    """Collates each sample by itself; None: torch's default_collate collates a chunk."""

    @cached_property
    def samples(self) -> Samples:
        """The opened dataset."""
        return self.dataset.open()

    def chunks(self, purpose: str) -> Iterator[Chunk]:
        """Yield all samples in order, collated, in chunks of about 2 MiB, with a progress bar on a
        terminal."""
        # the size of the first readable sample determines how many samples make a chunk
        single = self._chunks_of(1, 0)
        first = next((chunk.batch for chunk in single if chunk.batch is not None), None)
        if first is None:
            raise BadData(f"{self.dataset.label}: no readable sample")
        size = max(1, min(1024, CHUNK_BYTES // max(1, nbytes_of(first))))
        processes = _decoding_processes(self.samples)
        with tqdm(
            total=len(self.samples),
            desc=f"{self.dataset.label}: {purpose}",
            unit=" samples",
            leave=False,
            disable=None,
        ) as bar:
            for chunk in self._chunks_of(size, processes):
                note_progress()
                yield chunk
                bar.update(chunk.size)

    def _chunks_of(self, size: int, num_workers: int) -> Iterator[Chunk]:
        if self.collate is None:
            ragged = is_ragged(self.dataset)
            return collate_chunks(self.samples, size, num_workers, self.tolerant, ragged)
        items = IndexedSamples(self.samples, self.tolerant, as_fetched=True)
        collate_fn = partial(collate_each, collate=self.collate)
        return iter(decode_in_order(items, size, collate_fn, num_workers))


def _decoding_processes(samples: Samples) -> int:
    """0 if decoding in this process is fast enough, else the number of usable cores."""
    # tolerant: a broken sample is reported where it is read, not while decoding is timed
    probe = IndexedSamples(samples, tolerant=True)
    start_ns = now_ns()
    count = sum(1 for _ in islice(map(probe.__getitem__, range(len(samples))), PROBED_SAMPLES))
    sample_s = seconds_between(start_ns, now_ns()) / count
    slow = sample_s > SLOW_SAMPLE_S and sample_s * len(samples) > SLOW_TOTAL_S
    return usable_cores() if slow and _is_picklable(samples) else 0


def _is_picklable(samples: Samples) -> bool:
    """False if samples can't be sent to another process, because of a lambda or an open file."""
    try:
        pickle.dumps(samples)
    # a user's class may raise anything
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class IndexedSamples:
    """Samples as items (index, sample, error).

    tolerant: return a BadData as the error; any other error is always raised as a BadData with the
    index. as_fetched: in the place of the sample, return the argument that a DataLoader would pass
    to its collate_fn.
    """

    samples: Samples
    tolerant: bool
    as_fetched: bool = False

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, Tree, str]:
        if not index % SAMPLES_PER_NOTE:
            note_progress()
        try:
            if self.as_fetched:
                return index, fetch_samples(self.samples, [index]), ""
            return index, self.samples[index], ""
        except BadData as error:
            if not self.tolerant:
                raise
            return index, [None] if self.as_fetched else None, str(error)
        except Exception as error:
            raise BadData(f"sample {index}: {error_line(error)}") from error


def collate_chunks(
    samples: Samples, chunk: int, num_workers: int, tolerant: bool = False, ragged: bool = False
) -> Iterator[Chunk]:
    """Yield all samples in order, in batches of `chunk`; raises SamplesDiffer if they differ.

    num_workers: processes that decode, with a bounded number of batches in flight; 0: this one.
    ragged: the first dimension of a leaf may differ between samples.
    """
    collate = partial(collate_chunk, ragged=ragged, tolerant=tolerant)
    yield from decode_in_order(IndexedSamples(samples, tolerant), chunk, collate, num_workers)
