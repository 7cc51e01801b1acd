"""A dataset's samples on their way into a reference or a store, chunk by chunk."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from tqdm import tqdm

from fastloop.chunks import Chunk, Numbered, collated_chunks
from fastloop.digest import nbytes_of
from fastloop.limits import usable_cores
from fastloop.protocols import Dataset, Samples
from fastloop.ragged import is_ragged
from fastloop.spans import now_ns, seconds_between
from fastloop.types import BadData

CHUNK_BYTES = 2 << 20
PROBED_SAMPLES = 64
SLOW_SAMPLE_S = 20e-6
"""Decoding slower than this is worth several processes: 3 us a sample loses with them, 49 us
wins."""
SLOW_TOTAL_S = 2.0
"""Less decoding than this in all is not worth starting them."""


@dataclass(frozen=True)
class Source:
    """A dataset's samples, opened only when something has to be written."""

    dataset: Dataset
    tolerant: bool = False

    @cached_property
    def samples(self) -> Samples:
        """What the dataset opens to."""
        return self.dataset.open()

    def chunks(self, purpose: str) -> Iterator[Chunk]:
        """All samples in order, collated, about 2 MiB to a chunk, with a bar on a terminal."""
        ragged = is_ragged(self.dataset)
        singly = collated_chunks(self.samples, 1, 0, self.tolerant, ragged)
        first = next((one.batch for one in singly if one.batch is not None), None)
        if first is None:
            raise BadData(f"{self.dataset.label}: no sample that can be read")
        chunk = max(1, min(1024, CHUNK_BYTES // max(1, nbytes_of(first))))
        processes = _decoding_processes(self.samples)
        with tqdm(
            total=len(self.samples),
            desc=f"{self.dataset.label}: {purpose}",
            unit=" samples",
            leave=False,
            disable=None,
        ) as bar:
            for one in collated_chunks(self.samples, chunk, processes, self.tolerant, ragged):
                yield one
                bar.update(one.size)


def _decoding_processes(samples: Samples) -> int:
    """0 where decoding in this process is quick enough, else one a usable core."""
    probe = Numbered(samples, tolerant=True)
    start_ns = now_ns()
    probed = sum(1 for _ in islice(map(probe.__getitem__, range(len(samples))), PROBED_SAMPLES))
    sample_s = seconds_between(start_ns, now_ns()) / probed
    slow = sample_s > SLOW_SAMPLE_S and sample_s * len(samples) > SLOW_TOTAL_S
    return usable_cores() if slow and _travels(samples) else 0


def _travels(samples: Samples) -> bool:
    """False where another process can't be given them: a lambda in a transform, an open file."""
    try:
        pickle.dumps(samples)
    except Exception:  # whatever a class of the user's raises
        return False
    return True
