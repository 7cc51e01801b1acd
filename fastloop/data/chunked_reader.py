"""ChunkedReader: reads all samples of a dataset in order, in chunks, to write the dataset's
reference or store.

Slow decoding is spread over several processes. Samples that differ in tree, dtype or shape are
errors; in a ragged dataset, the first dimension of a leaf may differ.
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

import optree
import torch
from torch.utils.data import DataLoader, default_collate
from tqdm import tqdm

from fastloop.core import stats
from fastloop.core.cgroup import usable_cores
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.stall_limit import note_progress
from fastloop.core.time_limits import within
from fastloop.core.trees import tree_leaves
from fastloop.core.types import (
    BadData,
    Invalid,
    Leaves,
    LengthsDiffer,
    SamplesDiffer,
    Tree,
    Unsupported,
    UnusableLeaves,
)
from fastloop.core.user_code import error_line
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.dataset_samples import is_broken
from fastloop.data.digest import leaves_of, nbytes_of
from fastloop.data.ragged import (
    LISTS_OF_NUMBERS,
    RaggedTensor,
    collate_ragged,
    difference_error,
    is_ragged,
)
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

PYTHON_DTYPES = {bool: "bool", int: "int64", float: "float64"}
"""dtypes to which default_collate converts Python's numbers."""


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


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples, collated to one batch."""

    batch: Tree
    """The decoded samples, collated by torch's default_collate, or with RaggedTensor leaves if
    samples differ in length; None if no sample could be decoded."""
    broken: list[tuple[int, str]]
    """Index and reason of each sample that could not be decoded."""
    size: int
    """Number of samples, including those that could not be decoded."""


def collate_chunk(
    items: list[tuple[int, Tree, str]], ragged: bool, tolerant: bool = False
) -> Chunk:
    """Collate (index, sample, error) items into a chunk.

    Raises SamplesDiffer if samples differ, and BadData if they can't be collated. A sample that is
    None or, without `ragged`, holds a None raises BadData, too, unless `tolerant`.
    """
    # Without `ragged`, a None inside of a sample can't be collated, so the sample is broken.
    missing = {
        index: _missing(index, error)
        for index, sample, error in items
        if sample is None or (not ragged and is_broken(sample))
    }
    if missing and not tolerant:
        remedy = "a measurement leaves it out with collate=skip_broken or a collate of your own"
        raise BadData(f"{next(iter(missing.values()))}; {remedy}")
    decoded = [(index, sample) for index, sample, _ in items if index not in missing]
    broken = list(missing.items())
    collate = collate_ragged if ragged else default_collate
    try:
        batch = collate([sample for _, sample in decoded]) if decoded else None
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        if difference := _describe_difference(decoded, _describe, ragged):
            raise _difference_error(difference, decoded, ragged) from error
        # default_collate raises a TypeError for leaves of another kind, such as images of Pillow.
        kind = UnusableLeaves if isinstance(error, TypeError) else BadData
        raise kind(f"samples can't be collated: {error}") from error
    # default_collate succeeds for some samples that differ: it drops keys that the first sample
    # lacks, and converts dtypes.
    if difference := _describe_difference(decoded, _signature, ragged):
        raise SamplesDiffer(difference)
    _check_leaves(batch)
    return Chunk(batch, broken, len(items))


def collate_each(items: list[tuple[int, Any, str]], collate: Callable[[Any], Tree]) -> Chunk:
    """Collate each of (index, fetched, error) items by itself.

    fetched: the argument that a DataLoader passes to `collate` for that index alone. A sample is
    broken if `collate` leaves it out. Raises BadData if samples differ, if `collate` fails for a
    sample that is not None, and if it returns anything but a batch of one sample.
    """
    batches = {index: _batch_of_one(index, fetched, collate) for index, fetched, _ in items}
    whole = [(index, batch) for index, batch in batches.items() if batch is not None]
    broken = [
        (index, _missing(index, error))
        if is_broken(fetched)
        else (index, f"sample {index}: the collate leaves it out")
        for index, fetched, error in items
        if batches[index] is None
    ]
    return Chunk(_concatenate(whole) if whole else None, broken, len(items))


def _batch_of_one(index: int, fetched: Any, collate: Callable[[Any], Tree]) -> Tree | None:
    """The batch that `collate` makes of one sample; None if it leaves the sample out."""
    try:
        batch = collate(fetched)
    # A user's function may raise anything. If it removes a broken sample and calls default_collate
    # with the empty list that is left, default_collate raises; that is not a fault of the function.
    except Exception as error:
        if is_broken(fetched):
            return None
        raise BadData(f"sample {index}: the collate fails: {error_line(error)}") from error
    if is_broken(batch):
        return None
    try:
        leaves_of(batch)
    except Invalid as error:
        hint = "fastloop.bench measures loaders with other batches"
        text = f"sample {index}: the collate makes no batch: {error}; {hint}"
        raise BadData(text) from error
    count = len(tree_leaves(batch)[0])
    if count > 1:
        raise BadData(f"sample {index}: the collate makes a batch of {count} samples of it")
    return batch if count else None


def _concatenate(batches: list[tuple[int, Tree]]) -> Tree:
    """The batches as one; raises BadData if their trees, dtypes or shapes differ."""
    (first, batch), *others = batches
    kind = optree.tree_structure(batch), leaves_of(batch)
    for index, other in others:
        if (optree.tree_structure(other), leaves_of(other)) != kind:
            pair = f"{first} is {kind[1]}, {index} is {leaves_of(other)}"
            hint = "each sample is compared by itself, so pad all to one length, or use "
            hint += "collate=pad, which keeps their lengths; "
            hint += "fastloop.bench measures your loader as it is"
            raise BadData(f"samples differ once collated: {pair}; {hint}")
    columns = zip(*(tree_leaves(each) for _, each in batches), strict=True)
    joined = [torch.cat(column) for column in columns]
    # tree_leaves also opens containers that are leaves to optree, such as dataclasses, and optree
    # can't put their parts back. The gate needs only the leaves, in this order.
    return kind[0].unflatten(joined) if kind[0].num_leaves == len(joined) else joined


def _missing(index: int, error: str) -> str:
    return error or f"sample {index} is None, or holds a None"


def _check_leaves(batch: Tree) -> None:
    leaves = [] if batch is None else optree.tree_leaves(batch)
    others = {
        type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor | RaggedTensor)
    }
    if others:
        names = ", ".join(sorted(others))
        raise UnusableLeaves(
            f"samples hold {names}; only tensors, arrays and numbers are supported"
        )


def _difference_error(message: str, samples: list[tuple[int, Tree]], ragged: bool) -> SamplesDiffer:
    """The error for samples that differ, with a hint if they hold lists of numbers."""
    kinds = [_signature(sample, ragged=False) for _, sample in samples]
    # Samples that are padded anyway differ in more than their lengths.
    error = SamplesDiffer(message) if ragged else difference_error(message, kinds)
    holds_lists = any(f"[{kind}, {kind}" in message for kind in ("int", "float"))
    if isinstance(error, LengthsDiffer) or not holds_lists:
        return error
    return SamplesDiffer(f"{message}; {LISTS_OF_NUMBERS}")


def _describe_difference(
    samples: list[tuple[int, Tree]], key: Callable[[Tree, bool], Any], ragged: bool
) -> str:
    """The first two samples with different keys, in words; empty if all keys are equal."""
    if not samples:
        return ""
    (first, sample), *others = samples
    expected = key(sample, ragged)
    for index, other in others:
        if key(other, ragged) != expected:
            pair = f"{first} is {_describe(sample, ragged)}, {index} is {_describe(other, ragged)}"
            return f"samples differ: {pair}"
    return ""


def _signature(sample: Tree, ragged: bool) -> tuple[Any, Leaves]:
    """The tree, and the dtype and shape that each leaf has in a batch: int and int64 are equal."""
    leaves, structure = optree.tree_flatten(sample)
    return structure, tuple((_dtype(leaf), _sizes(leaf, ragged)) for leaf in leaves)


def _describe(sample: Tree, ragged: bool) -> str:
    return str(optree.tree_map(partial(_describe_leaf, ragged=ragged), sample)).replace("'", "")


def _describe_leaf(leaf: Any, ragged: bool) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{_dtype(leaf)}[{', '.join(map(str, _sizes(leaf, ragged)))}]"


def _dtype(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return str(leaf.dtype).removeprefix("torch.")
    return PYTHON_DTYPES.get(type(leaf), type(leaf).__name__)


def _sizes(leaf: Any, ragged: bool) -> tuple[Any, ...]:
    shape: Any = getattr(leaf, "shape", ())
    sizes: tuple[Any, ...] = tuple(shape)
    return ("*", *sizes[1:]) if ragged and sizes else sizes
