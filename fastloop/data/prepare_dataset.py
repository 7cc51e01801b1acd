"""Prepare a dataset for a job: write its same-data reference, and the store that the loader reads,
unless they exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fastloop.core.atomic_files import remove_partial
from fastloop.core.fingerprints import fingerprint
from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import (
    Collate,
    Dataset,
    HasFiles,
    Store,
    StreamingDataset,
)
from fastloop.core.source_fingerprint import source_fingerprint, user_class_of
from fastloop.core.stall_limit import Stalled, limit_stalls
from fastloop.core.types import (
    BadData,
    SamplesDiffer,
    TimeLimit,
    Unsupported,
    UnusableLeaves,
    name_of,
)
from fastloop.data.chunked_reader import ChunkedReader, forecast_reading_s
from fastloop.data.class_counts import (
    ClassCounter,
    LabelledBatches,
    check_num_classes,
    resolve_num_classes,
)
from fastloop.data.decoder_agreement import TOLERANCE, decoder_equivalence_id
from fastloop.data.digest import (
    content_fingerprint,
    epoch_hashes,
    reference_digest,
    row_nbytes,
)
from fastloop.data.prepare_store import check_storable, prepare_store
from fastloop.data.random_samples import SeededDataset, needs_seeds
from fastloop.data.reference import (
    HASHES,
    REFERENCE_VERSION,
    write_reference,
)
from fastloop.data.sample_advice import advise
from fastloop.data.sealed_folder import Facts, break_seal_if_damaged, read_seal, write_once


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """The data that a job needs. Jobs with equal requests share it."""

    dataset: Dataset
    store: Store | None = None
    """The store that the loader reads; None: it reads the dataset itself."""
    tolerant: bool = False
    """True if samples that can't be decoded are left out."""
    collate: Collate | None = None
    """The collate that makes the samples, see CollateTraits.defines_samples; None: torch's
    default_collate."""

    def prepare(self, compares_checksums: bool = False) -> PreparedData:
        """Write the reference and the store of the data unless they exist.

        compares_checksums: read all existing files of the reference and the store, and write
        damaged ones again; ignored for a stream. Raises BadData, Unsupported or OSError; no
        partially written file is left behind.
        """
        dataset, store = self.dataset, self.store
        if isinstance(dataset, StreamingDataset):
            return _prepare_stream(dataset, dataset)
        # This comes before the download of the dataset: if the store can't hold the dataset,
        # nothing should be downloaded.
        check_storable(dataset, store)
        remove_partial(outputs_folder() / "stores")
        source_id = _fingerprint_of(dataset)
        prepared = _prepare_reference(self, source_id, compares_checksums)
        if store is None:
            files = dataset.files() if isinstance(dataset, HasFiles) else []
            return dataclasses.replace(prepared, files=tuple(files))
        if prepared.broken:
            reason = f"a store holds intact samples only, and {prepared.broken[0][1]}"
            raise Unsupported(f"store={name_of(store)}: {reason}; loader=raw leaves it out")
        return prepare_store(prepared, store, compares_checksums)

    def forecast_s(self) -> float:
        """About how many seconds it takes to read all samples for the reference, judging by the
        first ones.

        0 if there is a reference, and for a stream, because its length is unknown. Except for a
        stream, the dataset is downloaded or generated first if it is missing; without a reference
        it is also opened.
        """
        if isinstance(self.dataset, StreamingDataset):
            return 0.0
        is_written = read_seal(_reference_path(self, _fingerprint_of(self.dataset)))
        return 0.0 if is_written else forecast_reading_s(self.dataset.open())

    def prepare_within(self, limit_s: float, compares_checksums: bool = False) -> PreparedData:
        """Prepare the data; raises TimeLimit if no sample is read or written for that many
        seconds."""
        with limit_preparation(self.dataset, limit_s):
            return self.prepare(compares_checksums)


@contextmanager
def limit_preparation(dataset: Dataset, limit_s: float) -> Iterator[None]:
    """Raise TimeLimit inside the context if no sample of the dataset is read or written for that
    many seconds."""
    try:
        with limit_stalls(limit_s):
            yield
    except Stalled as error:
        raise TimeLimit(f"preparing {dataset.label}: {error}") from error


def prepare(
    dataset: Dataset,
    store: Store | None,
    tolerant: bool = False,
    collate: Collate | None = None,
    compares_checksums: bool = False,
) -> PreparedData:
    """Prepare a dataset, see `DataRequest`."""
    request = DataRequest(dataset=dataset, store=store, tolerant=tolerant, collate=collate)
    return request.prepare(compares_checksums)


def _fingerprint_of(dataset: Dataset) -> str:
    """Fingerprint of the dataset's source, which is downloaded first if it is absent."""
    return fingerprint(dataset.fetch(), source_fingerprint(dataset), *user_class_of(dataset))


def _reference_path(request: DataRequest, source_id: str) -> Path:
    """Folder of the dataset's reference. source_id: fingerprint of the dataset's source."""
    kind = "tolerant" if request.tolerant else "reference"
    if request.collate is not None:
        collate_id = fingerprint(repr(request.collate), source_fingerprint(request.collate))
        kind = f"collate-{collate_id[:16]}"
    # The names of the dataset's stores begin like this name, see prepare_store.py.
    name = f"{name_of(request.dataset)}-{source_id[:16]}.{kind}"
    return outputs_folder() / "stores" / name


def _prepare_reference(
    request: DataRequest, source_id: str, compares_checksums: bool
) -> PreparedData:
    """Write the reference unless it exists, and describe the dataset by it.

    source_id: fingerprint of the dataset's source.
    """
    dataset = request.dataset
    collate = None if request.collate is None else request.collate.collate
    source = ChunkedReader(dataset, request.tolerant, collate)
    reference = _reference_path(request, source_id)
    write = partial(_write_reference, source=source)
    try:
        facts = write_once(
            reference, fingerprint(source_id, REFERENCE_VERSION), write, compares_checksums
        )
    except (SamplesDiffer, UnusableLeaves) as error:
        raise BadData(advise(error, dataset)) from error
    check_num_classes(dataset, facts.get("num_classes"))
    return PreparedData(
        dataset=dataset,
        label=dataset.label,
        fingerprint=source_id,
        content=facts["content"],
        reference=reference,
        folder=reference,
        num_samples=facts["num_samples"],
        sample=tuple((dtype, tuple(shape)) for dtype, shape in facts["leaves"]),
        sample_nbytes=facts["sample_nbytes"],
        num_classes=resolve_num_classes(dataset.num_classes, facts.get("num_classes")),
        broken=tuple((index, reason) for index, reason in facts["broken"]),
        random=facts["random"],
        returns_batches=facts["returns_batches"],
        **_decoder_facts(dataset, facts),
    )


def _write_reference(folder: Path, source: ChunkedReader) -> Facts:
    """Write the reference; `random` in the facts is True if samples are random, and were seeded."""
    is_random = needs_seeds(source.dataset, source.samples)
    if is_random:
        source = dataclasses.replace(source, dataset=SeededDataset(source.dataset))
    return write_reference(folder, source) | {"random": is_random}


def _decoder_facts(dataset: Dataset, facts: Facts) -> Facts:
    """The fields of PreparedData about the decoder, if the dataset's pixels agree with Pillow's;
    else empty."""
    difference = facts["pixels_off"]
    if difference is None or difference > TOLERANCE:
        return {}
    leaves = [[dtype, list(shape)] for dtype, shape in facts["leaves"]]
    identity = [facts["num_samples"], leaves, [index for index, _ in facts["broken"]]]
    equivalence_id = decoder_equivalence_id(dataset, *identity)
    return {"decoder_equivalence_id": equivalence_id, "pixels_off": difference}


def find_damage(prepared: PreparedData) -> str:
    """A message that names the store or the reference of prepared data, if it is damaged; else
    empty.

    Its seal is removed, so the next command writes it again.
    """
    # Without a store, both folders are the same.
    for folder in dict.fromkeys((prepared.reference, prepared.folder)):
        if damage := break_seal_if_damaged(folder):
            return f"{folder}: {damage}; the next command writes it again"
    return ""


def _prepare_stream(dataset: Dataset, stream: StreamingDataset) -> PreparedData:
    """Prepare a streaming dataset: its first epoch becomes the reference.

    Two such datasets are comparable if their first epochs have the same samples or, with
    same_data=false, the same number of samples, dtypes and shapes.
    """
    classes = ClassCounter()
    scale = dataset.uint8_scale
    with stream.batches() as batches:
        hashes, leaves = epoch_hashes(LabelledBatches(batches, classes), scale)
    digest = reference_digest(hashes, leaves)
    data = fingerprint(
        "stream", digest.count, leaves, digest.total if stream.same_data else "random"
    )
    folder = outputs_folder() / "stores" / f"stream-{data[:16]}.reference"

    def write(beside: Path) -> Facts:
        np.save(beside / HASHES, hashes)
        return {}

    write_once(folder, data, write)
    return PreparedData(
        dataset=dataset,
        label=dataset.label,
        fingerprint=data,
        content=content_fingerprint(hashes, leaves, scale) if stream.same_data else data,
        reference=folder,
        folder=folder,
        num_samples=len(hashes),
        sample=leaves,
        sample_nbytes=row_nbytes(leaves),
        num_classes=resolve_num_classes(dataset.num_classes, classes.count),
    )
