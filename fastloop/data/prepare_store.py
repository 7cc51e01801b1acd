"""Write the samples of a dataset in the format of a store, unless that store exists already."""

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
"""A store of this size or more is announced before it is written."""
FIRST_FORMAT = 1
"""Format version of a store if its seal, the file with the facts about the store, names none."""


def prepare_store(
    prepared: PreparedData, store: Store, root: Path, compares_checksums: bool
) -> PreparedData:
    """Write the store unless it exists, and return the prepared data with the store's folder.

    root: path of the store's folder; a suffix is appended if the store has settings of its own.
    compares_checksums: read an existing store as a whole, and write it again if it is damaged.
    Raises BadData if the parent folder can't be made.
    """
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise BadData(f"loader.store.root={store.root}: it is not a folder") from None
    except OSError as error:
        raise BadData(f"loader.store.root={store.root}: {error.strerror}") from error
    # A sweep may measure a store with several settings, so each of these stores has its own folder.
    settings = [*user_class_of(store), *_settings(store)]
    # An environment may have another version of the library that writes the store. That version may
    # be unable to read the files of this one.
    if isinstance(store, HasInstallCheck) and is_inside():
        settings.append(Path(sys.prefix).name)
    if settings:
        root = root.with_name(f"{root.name}-{fingerprint(settings)[:8]}")
    code = getattr(store, "format_version", None) or source_fingerprint(store)
    earlier = _find_earlier_store(root, prepared.reference, code)
    if earlier and not (compares_checksums and break_seal_if_damaged(earlier[0])):
        root, facts = earlier
    else:
        # The reader that wrote the reference has opened the dataset already. With a new reader, the
        # recorded seconds of every store include opening the dataset.
        source = ChunkedReader(prepared.dataset)
        nbytes = prepared.num_samples * prepared.sample_nbytes
        write = partial(_write_store, source=source, store=store, code=code, nbytes=nbytes)
        expected = fingerprint(prepared.fingerprint, code, *settings)
        facts = write_once(root, expected, write, compares_checksums)
    return dataclasses.replace(
        prepared, folder=root, files=(root,), seconds=facts["seconds"], disk_mib=facts["disk_mib"]
    )


def _find_earlier_store(root: Path, reference: Path, code: int | str) -> tuple[Path, Facts] | None:
    """Folder and facts of a store of the same samples that an older fingerprint names.

    None if there is no such store, or if the folder `root` exists. reference: the folder with the
    hashes of the present samples. code: the store's format version, or a fingerprint of its code.
    """
    if root.exists():
        return None
    # A change of the dataset's code changes the fingerprint in the folder's name, but seldom the
    # samples. The samples are equal if both references have the same hashes and the same form. A
    # hash is of bytes alone, and samples of another shape or tree may have the same bytes.
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
    """Write the store, and return the facts for its seal.

    A store of ANNOUNCED_MIB or more is announced on stderr first. nbytes: bytes of all samples.
    code: the store's format version, or a fingerprint of its code.
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
    """Name and value of each setting of the store except its root, the folder of all stores."""
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
