"""dataset + store -> Prepared: once, beside and renamed, under a lock, with a fingerprint.

Each folder is sealed by a `sealed.json` that names the fingerprint it was written for and the size
and the edges of every file. A folder without it, or that does not agree with it, is written anew:
never read as if good.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fastloop.chunks import Chunk, Numbered, collated_chunks
from fastloop.digest import Leaves, leaves_of, nbytes_of, sample_hashes
from fastloop.environment import usable_cores
from fastloop.files import (
    edges,
    fingerprint,
    flushed,
    locked,
    outputs_folder,
    source_of,
    written_beside,
)
from fastloop.ragged import is_ragged, longest
from fastloop.spans import now_ns, seconds_between
from fastloop.types import BadData, Dataset, OnDisk, Prepared, Samples, Store, Tree, Unsupported

SEAL = "sealed.json"
HASHES = "hashes.npy"
LENGTHS = "lengths.npy"
REFERENCE = 2
"""Raised whenever what a reference holds changes, so that an older one is written anew."""
CHUNK_BYTES = 2 << 20
PROBED_SAMPLES = 64
SLOW_SAMPLE_S = 20e-6
"""Decoding slower than this is worth several processes: 3 us a sample loses with them, 49 us
wins."""
SLOW_TOTAL_S = 2.0
"""Less decoding than this in all is not worth starting them."""

Facts = dict[str, Any]


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


def prepare(dataset: Dataset, store: Store | None, tolerant: bool = False) -> Prepared:
    """The dataset ready to be read, written as that store where it is not yet.

    tolerant: samples that can't be decoded are left out of the same-data reference, and told.

    Raises BadData, Unsupported or OSError; nothing half-written stays behind.
    """
    if store is not None and is_ragged(dataset):
        kind = type(store).__module__.rpartition(".")[2]
        why = f"rows are of one length, those of {dataset.label} are not; loader=raw reads it"
        raise Unsupported(f"store={kind}: {why}")
    data = fingerprint(dataset.fetch(), source_of(dataset))
    name = f"{type(dataset).__module__.rpartition('.')[2]}-{data[:16]}"
    kind = "tolerant" if tolerant else "reference"
    reference = outputs_folder() / "stores" / f"{name}.{kind}"
    write = partial(_write_reference, source=Source(dataset, tolerant))
    facts = _whole(reference, fingerprint(data, REFERENCE), write)
    prepared = Prepared(
        dataset=dataset,
        label=dataset.label,
        fingerprint=data,
        reference=reference,
        folder=reference,
        num_samples=facts["num_samples"],
        sample=tuple((dtype, tuple(shape)) for dtype, shape in facts["leaves"]),
        sample_nbytes=facts["sample_nbytes"],
        broken=tuple((index, why) for index, why in facts["broken"]),
    )
    if store is None:
        files = dataset.files() if isinstance(dataset, OnDisk) else []
        return dataclasses.replace(prepared, files=tuple(files))

    root = Path(store.root).absolute() / f"{name}.{type(store).__module__.rpartition('.')[2]}"
    # A source of its own, so that every store pays for opening the dataset, whichever is first.
    write = partial(_write_store, source=Source(dataset), store=store)
    facts = _whole(root, fingerprint(data, source_of(store)), write)
    return dataclasses.replace(
        prepared, folder=root, files=(root,), seconds=facts["seconds"], disk_mib=facts["disk_mib"]
    )


def reference_hashes(prepared: Prepared) -> np.ndarray:
    """(num_samples, 16) uint8: the hash of each sample, by the gate's own code, from the
    dataset."""
    return np.load(prepared.reference / HASHES, allow_pickle=False)


def sample_lengths(prepared: Prepared) -> np.ndarray:
    """(num_samples,) int64: the longest leaf of each sample of a dataset that is ragged."""
    return np.load(prepared.reference / LENGTHS, allow_pickle=False)


def _whole(folder: Path, wanted: str, write: Callable[[Path], Facts]) -> Facts:
    """The facts in the folder's seal; the folder is written first unless it is whole and as
    wanted."""
    with locked(folder):
        facts = _facts_if_whole(folder, wanted)
        if facts is None:
            with written_beside(folder) as beside:
                beside.mkdir()
                start_ns = now_ns()
                facts = write(beside) | {"fingerprint": wanted}
                _seal(beside, facts, start_ns)
    return facts


def _seal(folder: Path, facts: Facts, start_ns: int) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in files:
        flushed(path)  # before the rename, and so that no write-back runs beside a measurement
    facts["seconds"] = seconds_between(start_ns, now_ns())
    facts["disk_mib"] = sum(path.stat().st_size for path in files) / 2**20
    facts["files"] = {str(path.relative_to(folder)): edges(path) for path in files}
    (folder / SEAL).write_text(json.dumps(facts, indent=1))


def _facts_if_whole(folder: Path, wanted: str) -> Facts | None:
    try:
        facts = json.loads((folder / SEAL).read_text())
        whole = all(edges(folder / name) == seen for name, seen in facts["files"].items())
        return facts if whole and facts["fingerprint"] == wanted else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_reference(folder: Path, source: Source) -> Facts:
    # One array made beforehand: a small allocation kept for each chunk would break the heap into
    # holes that the next chunk does not fit in, a GiB of them for a store of 4 GiB.
    count, ragged = len(source.samples), is_ragged(source.dataset)
    hashes, lengths = np.zeros((count, 16), np.uint8), np.zeros(count if ragged else 0, np.int64)
    done, nbytes, leaves = 0, 0, None
    broken: list[tuple[int, str]] = []
    for chunk in source.chunks("hashing for the same-data gate"):
        whole = np.ones(chunk.size, bool)
        whole[[index - done for index, _ in chunk.broken]] = False
        if chunk.batch is not None:
            leaves = _same_leaves(leaves, chunk.batch, done)
            hashes[done : done + chunk.size][whole] = sample_hashes(
                chunk.batch, source.dataset.uint8_scale
            )
            nbytes += nbytes_of(chunk.batch)
            if ragged:
                lengths[done : done + chunk.size][whole] = longest(chunk.batch)
        broken += chunk.broken
        done += chunk.size
    np.save(folder / HASHES, hashes)
    if ragged:
        np.save(folder / LENGTHS, lengths)
    mean_nbytes = max(1, round(nbytes / (count - len(broken))))
    known = {"num_samples": count, "leaves": leaves, "sample_nbytes": mean_nbytes}
    return known | {"broken": broken}


def _same_leaves(before: Leaves | None, batch: Tree, index: int) -> Leaves:
    """The batch's leaves; raises BadData where they are not those of the samples before it."""
    found = leaves_of(batch)
    if before is not None and found != before:
        raise BadData(f"samples differ: up to {index} they are {before}, from it on {found}")
    return found


def _write_store(folder: Path, source: Source, store: Store) -> Facts:
    purpose = "writing " + type(store).__module__.rpartition(".")[2]
    batches = (chunk.batch for chunk in source.chunks(purpose))
    store.write(folder, batches, len(source.samples))
    return {}


def _decoding_processes(samples: Samples) -> int:
    """0 where decoding in this process is quick enough, else one a usable core."""
    probe = Numbered(samples, tolerant=True)
    start_ns = now_ns()
    probed = sum(1 for _ in islice(map(probe.__getitem__, range(len(samples))), PROBED_SAMPLES))
    sample_s = seconds_between(start_ns, now_ns()) / probed
    slow = sample_s > SLOW_SAMPLE_S and sample_s * len(samples) > SLOW_TOTAL_S
    return usable_cores() if slow else 0
