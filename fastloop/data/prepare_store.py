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


def prepare_store(prepared: PreparedData, store: Store, compares_checksums: bool) -> PreparedData:
    """Write the store unless it exists, and return the prepared data with the store's folder.

    The name of the folder has the beginning of the reference's name, the name of the store and, if
    the store has settings, their fingerprint. If there is no such folder, a store of the same
    samples with an older fingerprint in its name is used in its place. compares_checksums: read an
    existing store as a whole, and write it again if it is damaged. Raises BadData if the parent
    folder can't be made.
    """
    parent = _make_parent(store)
    settings = _settings_of(store)
    suffix = f".{name_of(store)}" + (f"-{fingerprint(settings)[:8]}" if settings else "")
    folder = parent / f"{prepared.reference.stem}{suffix}"
    code = getattr(store, "format_version", None) or source_fingerprint(store)
    earlier = None
    if not folder.exists():
        earlier = _find_earlier_store(parent, suffix, prepared.reference, code)
    if earlier and not (compares_checksums and break_seal_if_damaged(earlier[0])):
        folder, facts = earlier
    else:
        expected = fingerprint(prepared.fingerprint, code, *settings)
        write = partial(_write_store, prepared=prepared, store=store, code=code)
        facts = write_once(folder, expected, write, compares_checksums)
    return dataclasses.replace(
        prepared,
        folder=folder,
        files=(folder,),
        seconds=facts["seconds"],
        disk_mib=facts["disk_mib"],
    )


def _make_parent(store: Store) -> Path:
    """The absolute path of the folder of all stores, which is made if it is missing."""
    parent = Path(store.root).absolute()
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise BadData(f"loader.store.root={store.root}: it is not a folder") from None
    except OSError as error:
        raise BadData(f"loader.store.root={store.root}: {error.strerror}") from error
    return parent


def _settings_of(store: Any) -> list[Any]:
    """The properties by which stores of one name differ: each combination has its own folder.

    These are the name of a user's class, the name and value of each setting except `root`, and the
    environment that writes the store.
    """
    settings: list[Any] = [*user_class_of(store)]
    if dataclasses.is_dataclass(store):
        names = [field.name for field in dataclasses.fields(store) if field.name != "root"]
        settings += [(name, getattr(store, name)) for name in names]
    else:
        values = sorted(getattr(store, "__dict__", {}).items())
        settings += [(name, stable_repr(value)) for name, value in values if name != "root"]
    # An environment may have another version of the library that writes the store. That version may
    # be unable to read the files of this one.
    if isinstance(store, HasInstallCheck) and is_inside():
        settings.append(Path(sys.prefix).name)
    return settings


def _find_earlier_store(
    parent: Path, suffix: str, reference: Path, code: int | str
) -> tuple[Path, Facts] | None:
    """Folder and facts of a store of the same samples that an older fingerprint names; or None.

    suffix: the end of the name of the store's folder. reference: the folder with the hashes of the
    present samples. code: the store's format version, or a fingerprint of its code.
    """
    # A change of the dataset's code changes the fingerprint in the folder's name, but seldom the
    # samples. The samples are equal if both references have the same hashes and the same form. A
    # hash is of bytes alone, and samples of another shape or tree may have the same bytes.
    now = read_seal(reference) or {}
    name, data = reference.stem.rsplit("-", 1)
    hashes = (reference / HASHES).read_bytes()
    for folder in sorted(parent.glob(f"{name}-{'?' * len(data)}{suffix}")):
        earlier = reference.with_name(folder.name.removesuffix(suffix) + reference.suffix)
        facts, reference_facts = read_seal(folder), read_seal(earlier)
        if not facts or not reference_facts or facts.get("code", FIRST_FORMAT) != code:
            continue
        is_alike = all(reference_facts.get(each) == now.get(each) for each in ("leaves", "tree"))
        if is_alike and (earlier / HASHES).read_bytes() == hashes:
            return folder, facts
    return None


def _write_store(folder: Path, prepared: PreparedData, store: Store, code: int | str) -> Facts:
    """Write the store, and return the facts for its seal.

    code: the store's format version, or a fingerprint of its code.
    """
    # The reader that wrote the reference has opened the dataset already. With a new reader, the
    # recorded seconds of every store include opening the dataset.
    source = ChunkedReader(prepared.dataset)
    purpose = f"writing {name_of(store)}"
    _announce_size(folder, prepared, purpose)
    batches = (chunk.batch for chunk in source.chunks(purpose))
    store.write(folder, batches, len(source.samples))
    return {"code": code}


def _announce_size(folder: Path, prepared: PreparedData, purpose: str) -> None:
    """Print the size of a store of ANNOUNCED_MIB or more, and the free space, to stderr.

    purpose: the work that begins, in words.
    """
    nbytes = prepared.num_samples * prepared.sample_nbytes
    if nbytes < ANNOUNCED_MIB << 20:
        return
    free = shutil.disk_usage(folder).free
    size = f"about {nbytes >> 20:,} MiB for all {prepared.num_samples:,} samples"
    warning = "" if nbytes < free else ": it may not fit"
    text = f"{prepared.dataset.label}: {purpose} to {folder.parent}: {size}"
    tqdm.write(f"{text}, {free >> 20:,} MiB are free{warning}", file=sys.stderr)
