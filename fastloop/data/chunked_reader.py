"""ChunkedReader: reads all samples of a dataset in order, in chunks, to write the dataset's
reference or store.

Slow decoding is spread over several processes. sample_chunks.py collates the samples of a chunk.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any

from torch.utils.data import DataLoader
from tqdm import tqdm

from fastloop.core import stats
from fastloop.core.cgroup import usable_cores
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.stall_limit import note_progress
from fastloop.core.time_limits import within
from fastloop.core.types import BadData, Tree, Unsupported
from fastloop.core.user_code import error_line
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.digest import nbytes_of
from fastloop.data.ragged import is_ragged
from fastloop.data.sample_chunks import Chunk, collate_chunk, collate_each
from fastloop.processes.parent_death import tie_worker_to_parent

CHUNK_BYTES = 2 << 20
"""Approximate size of a chunk, which bounds the memory of writing."""
MOST_ROWS = 1024
"""Maximum number of samples in a chunk, however small they are."""
PROBED_SAMPLES = 64
"""Maximum number of samples that are decoded to find out how long decoding takes."""
PROBE_S = 2.0
"""No further sample is decoded for that purpose after this many seconds."""
SAMPLES_PER_NOTE = 16
"""Progress is noted once for this many samples, and after each chunk, see core/stall_limit.py."""
SLOW_SAMPLE_S = 20e-6
"""Decoding that takes longer per sample is spread over several processes. Measured: processes slow
down decoding that takes 3 us per sample, and speed up decoding that takes 49 us."""
SLOW_TOTAL_S = 2.0
"""Processes are not started for less decoding than this in total: they would not pay off."""


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
        # The first readable sample is read alone: its size decides how many samples make a chunk.
        single = self._chunks_of(1, 0)
        first = next((chunk.batch for chunk in single if chunk.batch is not None), None)
        if first is None:
            raise BadData(f"{self.dataset.label}: no readable sample")
        size = rows_per_chunk(first)
        processes = _decoding_processes(self.samples, stats.mean(_time_samples(self.samples)))
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
        return iter(_decode_in_order(items, size, collate_fn, num_workers))


def forecast_reading_s(samples: Samples) -> float:
    """About how many seconds `ChunkedReader.chunks` takes to read all samples, judging by the first
    ones.

    The forecast errs on the short side, because work that is expected to take too long is refused.
    If there is time to decode only one sample, the forecast is the time of that sample.
    """
    # Without samples, reading them fails at once.
    if not len(samples):
        return 0.0
    first_s, *others_s = _time_samples(samples)
    if not others_s:
        return first_s
    # A dataset may open its file when its first sample is read, so the time of the first sample
    # counts once. A few slow samples among the others, for example from a busy disk, raise the
    # mean, so the median is used if it is lower.
    sample_s = min(stats.mean(others_s), stats.median(others_s))
    rest_s = sample_s * (len(samples) - 1)
    return first_s + rest_s / max(1, _decoding_processes(samples, sample_s))


def rows_per_chunk(batch_of_one: Tree) -> int:
    """Number of samples of a chunk, from the size of a batch of one sample."""
    return max(1, min(MOST_ROWS, CHUNK_BYTES // max(1, nbytes_of(batch_of_one))))


def _time_samples(samples: Samples) -> list[float]:
    """Seconds to decode each of the first samples."""
    # The probe is tolerant: a broken sample is reported when it is read, not while decoding is
    # timed.
    probe = IndexedSamples(samples, tolerant=True)
    decoded = islice(map(probe.__getitem__, range(len(samples))), PROBED_SAMPLES)
    times_ns = [now_ns(), *(now_ns() for _ in within(decoded, PROBE_S))]
    return [seconds_between(*pair) for pair in pairwise(times_ns)]


def _decoding_processes(samples: Samples, sample_s: float) -> int:
    """0 if decoding in this process is fast enough, else the number of usable cores.

    sample_s: seconds to decode a sample.
    """
    slow = sample_s > SLOW_SAMPLE_S and sample_s * len(samples) > SLOW_TOTAL_S
    return usable_cores() if slow and _is_picklable(samples) else 0


def _decode_in_order(
    samples: Samples, batch_size: int, collate_fn: Callable[[list], Any], num_workers: int
) -> Iterable[Any]:
    """Batches of all samples in order, decoded in num_workers processes with a bounded number of
    batches in flight. Raises Unsupported if those processes could not import the samples' class.
    """
    context = _decoding_context() if num_workers else None
    # The server imports torch and the dataset's module once, instead of every process.
    if context == "forkserver":
        preloaded = ["__main__", "torch", type(samples).__module__]
        multiprocessing.get_context(context).set_forkserver_preload(preloaded)
    return DataLoader(
        samples,  # pyright: ignore[reportArgumentType]
        batch_size=batch_size,
        collate_fn=collate_fn,
        num_workers=num_workers,
        multiprocessing_context=context,
        worker_init_fn=tie_worker_to_parent,
    )


def _decoding_context() -> str:
    """The start method of processes that decode."""
    # A new process imports the classes of the dataset. Classes that are defined in a notebook, in
    # `python -c` or in a script read from stdin can't be imported: only a fork, which is also
    # DataLoader's default on Linux, has them.
    methods = multiprocessing.get_all_start_methods()
    if os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        return "forkserver" if "forkserver" in methods else "spawn"
    if sys.platform != "linux":
        reason = "other processes can't import what a notebook defines"
        raise Unsupported(f"num_workers: {reason}; put it in a module, or use num_workers=0")
    return "fork"


def _is_picklable(samples: Samples) -> bool:
    """False if samples can't be sent to another process, because of a lambda or an open file."""
    try:
        pickle.dumps(samples)
    # A user's class may raise anything.
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class IndexedSamples:
    """Samples as items (index, sample, error).

    tolerant: return a BadData as the error; any other error is always raised as a BadData with the
    index. as_fetched: in place of the sample, return the argument that a DataLoader would pass
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
    yield from _decode_in_order(IndexedSamples(samples, tolerant), chunk, collate, num_workers)
