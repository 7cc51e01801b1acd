"""prepare_store: writes the samples of a dataset in the format of a store, unless it exists."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fastloop.core.fingerprints import fingerprint, stable_repr
from fastloop.core.optional_libraries import HasInstallCheck
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Dataset, OverlappingDataset, Store
from fastloop.core.source_fingerprint import source_fingerprint, user_class_of
from fastloop.core.types import BadData, Unsupported, name_of
from fastloop.data.chunked_reader import ChunkedReader
from fastloop.data.ragged import is_ragged
from fastloop.data.reference import HASHES
from fastloop.data.sealed_folder import Facts, break_seal_if_damaged, read_seal, write_once
from fastloop.processes.environments import is_inside

ANNOUNCED_MIB = 64
"""Stores of this size or more are announced before they are written."""
FIRST_FORMAT = 1
"""Format version of stores with a seal that does not name one."""


def prepare_store(
    prepared: PreparedData, store: Store, root: Path, compares_checksums: bool
) -> PreparedData:
    """Write the store below that path unless it exists, and add it to the prepared data."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise BadData(f"loader.store.root={store.root}: it is not a folder") from None
    except OSError as error:
        raise BadData(f"loader.store.root={store.root}: {error.strerror}") from error
    # Stores with other settings have their own folders, as one sweep may measure several.
    settings = [*user_class_of(store), *_settings(store)]
    # An environment may have another version of the library that writes the store, and a version
    # may be unable to read the files of another one.
    if isinstance(store, HasInstallCheck) and is_inside():
        settings.append(Path(sys.prefix).name)
    if settings:
        root = root.with_name(f"{root.name}-{fingerprint(settings)[:8]}")
    code = getattr(store, "format_version", None) or source_fingerprint(store)
    earlier = _find_earlier_store(root, prepared.reference, code)
    if earlier and not (compares_checksums and break_seal_if_damaged(earlier[0])):
        root, facts = earlier
    else:
        # The reader that wrote the reference has opened the dataset already. A new reader is used,
        # so that the seconds of every store include opening the dataset.
        source = ChunkedReader(prepared.dataset)
        nbytes = prepared.num_samples * prepared.sample_nbytes
        write = partial(_write_store, source=source, store=store, code=code, nbytes=nbytes)
        expected = fingerprint(prepared.fingerprint, code, *settings)
        facts = write_once(root, expected, write, compares_checksums)
    return dataclasses.replace(
        prepared, folder=root, files=(root,), seconds=facts["seconds"], disk_mib=facts["disk_mib"]
    )


def _find_earlier_store(root: Path, reference: Path, code: int | str) -> tuple[Path, Facts] | None:
    """Folder and facts of a store of the same samples and format, written before the dataset's code
    changed; None if there is none."""
    if root.exists():
        return None
    # A change of the code changes the fingerprint in the folder's name, but seldom the samples. The
    # samples are equal if both references have the same hashes and the same form. The form counts
    # because hashes are of bytes, and another shape or tree may have the same bytes in the same
    # order.
    now = read_seal(reference) or {}
    name, data = reference.stem.rsplit("-", 1)
    kind = root.name.removeprefix(reference.stem)
    hashes = (reference / HASHES).read_bytes()
    for folder in sorted(root.parent.glob(f"{name}-{'?' * len(data)}{kind}")):
        earlier = reference.with_name(folder.name.removesuffix(kind) + reference.suffix)
        facts, reference_facts = read_seal(folder), read_seal(earlier)
        if not facts or not reference_facts or facts.get("code", FIRST_FORMAT) != code:
            continue
        is_alike = all(reference_facts.get(each) == now.get(each) for each in ("leaves", "tree"))
        if is_alike and (earlier / HASHES).read_bytes() == hashes:
            return folder, facts
    return None


def _write_store(
    folder: Path, source: ChunkedReader, store: Store, code: int | str, nbytes: int
) -> Facts:
    """Write the store; one of ANNOUNCED_MIB or more is announced on stderr before.

    nbytes: bytes of all samples. code: the store's format version, or the fingerprint of its code.
    """
    purpose = f"writing {name_of(store)}"
    if nbytes >= ANNOUNCED_MIB << 20:
        free = shutil.disk_usage(folder).free
        size = f"about {nbytes >> 20:,} MiB for all {len(source.samples):,} samples"
        warning = "" if nbytes < free else ": it may not fit"
        text = f"{source.dataset.label}: {purpose} to {folder.parent}: {size}"
        tqdm.write(f"{text}, {free >> 20:,} MiB are free{warning}", file=sys.stderr)
    batches = (chunk.batch for chunk in source.chunks(purpose))
    store.write(folder, batches, len(source.samples))
    return {"code": code}


def _settings(store: Any) -> list[tuple[str, Any]]:
    """The store's settings except its root."""
    if not dataclasses.is_dataclass(store):
        values = sorted(getattr(store, "__dict__", {}).items())
        return [(name, stable_repr(value)) for name, value in values if name != "root"]
    names = [field.name for field in dataclasses.fields(store) if field.name != "root"]
    return [(name, getattr(store, name)) for name in names]


def check_storable(dataset: Dataset, store: Store | None) -> None:
    """Raise Unsupported if the store can't or should not hold the dataset; reads no data."""
    if store is None:
        return
    reason = ""
    if is_ragged(dataset):
        reason = f"it holds samples of one length, and those of {dataset.label} differ"
    elif isinstance(dataset, OverlappingDataset):
        reason = dataset.reason_against_store()
    if reason:
        raise Unsupported(f"store={name_of(store)}: {reason}; loader=raw reads it")
