"""dataset + store -> Prepared: once, beside and renamed, under a lock, with a fingerprint.

Each folder is sealed by a `sealed.json` that names the fingerprint it was written for and the size
and the edges of every file. A folder without it, or that does not agree with it, is written anew:
never read as if good.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optree

from fastloop.alike import TOLERANCE, difference_to_pillow, images_whatever_decodes
from fastloop.classes import Classes, Looked
from fastloop.digest import (
    Leaves,
    content_of,
    epoch_hashes,
    expected,
    leaves_of,
    nbytes_of,
    row_nbytes,
    sample_hashes,
)
from fastloop.files import (
    edges,
    fingerprint,
    flushed,
    locked,
    outputs_folder,
    source_of,
    written_beside,
)
from fastloop.protocols import Dataset, OnDisk, Store, Streamed
from fastloop.ragged import is_ragged, longest
from fastloop.source import Source
from fastloop.spans import now_ns, seconds_between
from fastloop.storable import check_storable
from fastloop.types import BadData, Prepared, SamplesDiffer, Tree

SEAL = "sealed.json"
HASHES = "hashes.npy"
LENGTHS = "lengths.npy"
REFERENCE = 4
"""Raised whenever what a reference holds changes, so that an older one is written anew."""
Facts = dict[str, Any]


def prepare(dataset: Dataset, store: Store | None, tolerant: bool = False) -> Prepared:
    """The dataset ready to be read, written as that store where it is not yet.

    tolerant: samples that can't be decoded are left out of the same-data reference, and told.

    Raises BadData, Unsupported or OSError; nothing half-written stays behind.
    """
    if isinstance(dataset, Streamed):
        return _of_a_stream(dataset, dataset)
    check_storable(dataset, store)
    data = fingerprint(dataset.fetch(), source_of(dataset))
    name = f"{type(dataset).__module__.rpartition('.')[2]}-{data[:16]}"
    kind = "tolerant" if tolerant else "reference"
    reference = outputs_folder() / "stores" / f"{name}.{kind}"
    write = partial(_write_reference, source=Source(dataset, tolerant))
    try:
        facts = _whole(reference, fingerprint(data, REFERENCE), write)
    except SamplesDiffer as why:
        raise BadData(_remedied(str(why), dataset)) from why
    _check_classes(dataset, facts.get("num_classes"))
    prepared = Prepared(
        dataset=dataset,
        label=dataset.label,
        fingerprint=data,
        content=facts["content"],
        reference=reference,
        folder=reference,
        num_samples=facts["num_samples"],
        sample=tuple((dtype, tuple(shape)) for dtype, shape in facts["leaves"]),
        sample_nbytes=facts["sample_nbytes"],
        num_classes=_told(dataset.num_classes, facts.get("num_classes")),
        broken=tuple((index, why) for index, why in facts["broken"]),
        **_alike(dataset, facts),
    )
    if store is None:
        files = dataset.files() if isinstance(dataset, OnDisk) else []
        return dataclasses.replace(prepared, files=tuple(files))

    root = Path(store.root).absolute() / f"{name}.{type(store).__module__.rpartition('.')[2]}"
    # Two settings are two stores: both may be measured in one sweep.
    chosen = _settings(store)
    if chosen:
        root = root.with_name(f"{root.name}-{fingerprint(chosen)[:8]}")
    # A source of its own, so that every store pays for opening the dataset, whichever is first.
    write = partial(_write_store, source=Source(dataset), store=store)
    facts = _whole(root, fingerprint(data, source_of(store), *chosen), write)
    return dataclasses.replace(
        prepared, folder=root, files=(root,), seconds=facts["seconds"], disk_mib=facts["disk_mib"]
    )


def _alike(dataset: Dataset, facts: Facts) -> Facts:
    """Fields of Prepared, where its pixels agree with Pillow's."""
    off = facts["pixels_off"]
    if off is None or off > TOLERANCE:
        return {}
    leaves = [[dtype, list(shape)] for dtype, shape in facts["leaves"]]
    told = [facts["num_samples"], leaves, [index for index, _ in facts["broken"]]]
    return {"alike": images_whatever_decodes(dataset, *told), "pixels_off": off}


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
    done, nbytes, leaves, tree = 0, 0, None, None
    broken: list[tuple[int, str]] = []
    classes = Classes()
    for chunk in source.chunks("hashing for the same-data gate"):
        whole = np.ones(chunk.size, bool)
        whole[[index - done for index, _ in chunk.broken]] = False
        if chunk.batch is not None:
            leaves = _same_leaves(leaves, chunk.batch, done)
            tree = _same_tree(tree, chunk.batch, done)
            classes.look_at(chunk.batch)
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
    scale, skipped = source.dataset.uint8_scale, {index for index, _ in broken}
    return {
        "num_samples": count,
        "leaves": leaves,
        "sample_nbytes": mean_nbytes,
        "broken": broken,
        "num_classes": classes.count,
        "content": content_of(hashes, leaves or (), scale),
        "pixels_off": difference_to_pillow(source.dataset, skipped),
    }


def _of_a_stream(dataset: Dataset, stream: Streamed) -> Prepared:
    """What one epoch of it delivers is the reference: two that deliver the same are comparable."""
    classes, scale = Classes(), dataset.uint8_scale
    with stream.batches() as batches:
        hashes, leaves = epoch_hashes(Looked(batches, classes.look_at), scale)
    seen = expected(hashes, leaves)
    data = fingerprint("stream", seen.count, leaves, seen.total if stream.same_data else "random")
    folder = outputs_folder() / "stores" / f"stream-{data[:16]}.reference"

    def write(beside: Path) -> Facts:
        np.save(beside / HASHES, hashes)
        return {}

    _whole(folder, data, write)
    return Prepared(
        dataset=dataset,
        label=dataset.label,
        fingerprint=data,
        content=content_of(hashes, leaves, scale) if stream.same_data else data,
        reference=folder,
        folder=folder,
        num_samples=len(hashes),
        sample=leaves,
        sample_nbytes=row_nbytes(leaves),
        num_classes=_told(dataset.num_classes, classes.count),
    )


def _told(by_dataset: int | None, by_labels: int | None) -> int | None:
    return by_labels if by_dataset == 0 else by_dataset


def _same_leaves(before: Leaves | None, batch: Tree, index: int) -> Leaves:
    """The batch's leaves; raises BadData where they are not those of the samples before it."""
    found = leaves_of(batch)
    if before is not None and found != before:
        raise SamplesDiffer(f"samples differ: up to {index} they are {before}, from it on {found}")
    return found


def _same_tree(before: Any, batch: Tree, index: int) -> Any:
    """The batch's tree; raises SamplesDiffer where it is not that of the samples before it."""
    found = optree.tree_structure(batch)
    if before is not None and found != before:
        trees = [str(tree).removeprefix("PyTreeSpec") for tree in (before, found)]
        told = f"up to {index} they are {trees[0]}, from it on {trees[1]}"
        raise SamplesDiffer(f"samples differ: {told}")
    return found


def _check_classes(dataset: Dataset, by_labels: int | None) -> None:
    """Raise BadData where the dataset says that it has fewer classes than its labels name."""
    told = dataset.num_classes
    if told and by_labels and by_labels > told:
        said = f"its labels go up to {by_labels - 1}, and it has {told} classes"
        raise BadData(f"{dataset.label}: {said} (num_classes)")


def _remedied(why: str, dataset: Dataset) -> str:
    """In one line, also where it comes out of a worker; with what may help."""
    said = why.strip().splitlines()[-1].removeprefix(f"{SamplesDiffer.__module__}.SamplesDiffer: ")
    if getattr(dataset, "size", ...) is None:
        said += "; dataset.size=[height,width] brings images to one size"
    return said


def _write_store(folder: Path, source: Source, store: Store) -> Facts:
    purpose = "writing " + type(store).__module__.rpartition(".")[2]
    batches = (chunk.batch for chunk in source.chunks(purpose))
    store.write(folder, batches, len(source.samples))
    return {}


def _settings(store: Any) -> list[tuple[str, Any]]:
    """How the store is to be written, but for where."""
    fields = dataclasses.fields(store) if dataclasses.is_dataclass(store) else ()
    return [(one.name, getattr(store, one.name)) for one in fields if one.name != "root"]
