"""Stores: written once, whole or not at all, and never read when damaged."""

from __future__ import annotations

import json
import os
import re
from functools import partial

import fork_server
import numpy as np
import pytest
import torch
from options import MYDATASET, SUPPORT, compose_job, options, skip_without_library, store_of
from slow_dataset import SlowDataset

from fastloop.core.atomic_files import hold_lock
from fastloop.core.optional_libraries import check_libraries
from fastloop.core.types import BadData, Unsupported
from fastloop.data.digest import sample_hashes
from fastloop.data.prepare_dataset import find_damage, prepare
from fastloop.data.sealed_folder import SEAL, read_seal, write_once

STORE_LOADERS = [loader for loader in options("loader") if store_of(loader)]
LOADER_OF_EACH_STORE = list({store_of(name): name for name in STORE_LOADERS}.values())


def prepare_or_skip(job):
    """The job's dataset in its store; skipped where the store's library is absent."""
    try:
        check_libraries(job.loader)
        return prepare(job.dataset, job.loader.store)
    except Unsupported as error:
        skip_without_library(error)
        raise


def modification_times(prepared) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in prepared.folder.rglob("*")}


def store_names(outputs) -> list[str]:
    return sorted(
        path.name for path in (outputs / "stores").iterdir() if not path.name.endswith(".lock")
    )


def test_large_store_is_announced_once_with_its_size_and_the_free_disk(outputs, monkeypatch, capfd):
    job = compose_job("loader=np_memmap", *MYDATASET)
    prepare(job.dataset, None)
    monkeypatch.setattr("fastloop.data.prepare_store.ANNOUNCED_MIB", 0)
    for _ in range(2):
        prepare(job.dataset, job.loader.store)
    lines = [line for line in capfd.readouterr().err.splitlines() if "MiB" in line]
    expected = (
        r"mydataset: writing npy to .*/stores: about 0 MiB for all \d+ samples, [\d,]+ MiB are free"
    )
    assert [bool(re.fullmatch(expected, line)) for line in lines] == [True]


@pytest.mark.parametrize("loader", LOADER_OF_EACH_STORE)
def test_store_is_written_once_and_then_reused(outputs, loader):
    job = compose_job(f"loader={loader}", *MYDATASET)
    first = prepare_or_skip(job)
    before = modification_times(first)
    assert first.seconds > 0
    assert first.disk_mib > 0
    assert prepare(job.dataset, job.loader.store) == first
    assert modification_times(first) == before


@pytest.mark.parametrize("loader", STORE_LOADERS)
def test_store_of_a_changed_dataset_is_written_again(outputs, loader):
    job = compose_job(f"loader={loader}", *MYDATASET)
    first = prepare_or_skip(job)
    archive = dict(np.load(job.dataset.path))
    np.savez_compressed(job.dataset.path, data=archive["data"] + 1, targets=archive["targets"])
    second = prepare(job.dataset, job.loader.store)
    assert second.fingerprint != first.fingerprint
    with job.loader.open(second, job.plan(0)) as epochs:
        assert min(float(source.min()) for source, _ in epochs(0)) >= 1


def truncate(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)


def flip_a_byte_at_the_front(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.name != SEAL and path.suffix != ".json":
            data = bytearray(path.read_bytes())
            data[8] ^= 0xFF
            path.write_bytes(data)


def delete_the_seal(folder):
    (folder / SEAL).unlink()


def write_another_seal(folder):
    facts = json.loads((folder / SEAL).read_text())
    (folder / SEAL).write_text(json.dumps(facts | {"fingerprint": "another"}))


def write_an_invalid_seal(folder):
    (folder / SEAL).write_text("[1, 2")


def delete_a_file(folder):
    next(path for path in folder.iterdir() if path.name != SEAL and path.is_file()).unlink()


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip_a_byte_at_the_front,
        delete_the_seal,
        write_another_seal,
        write_an_invalid_seal,
        delete_a_file,
    ],
)
@pytest.mark.parametrize("loader", LOADER_OF_EACH_STORE)
def test_damaged_store_is_written_again(outputs, loader, damage):
    job = compose_job(f"loader={loader}", *MYDATASET)
    intact = prepare_or_skip(job)
    before = contents(intact.folder), delivered(job, intact)
    damage(intact.folder)
    rewritten = prepare(job.dataset, job.loader.store)
    after = contents(rewritten.folder), delivered(job, rewritten)
    # Lance and LitData write the time, or an identifier, into their files.
    compared = slice(1, 2) if loader in ("lance", "litdata") else slice(2)
    assert after[compared] == before[compared]


def contents(folder) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SEAL]
    return {path.name: path.read_bytes() for path in files}


def delivered(job, prepared) -> list[list[float]]:
    with job.loader.open(prepared, job.plan(0)) as epochs:
        return sorted(row.flatten().tolist() for source, _ in epochs(0) for row in source)


LARGE = ("dataset=mydataset", "dataset.count=1000")
"""Data whose files are longer than the edges that are compared before every command."""


def flip_bytes_in_the_middle(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    middle = slice(len(data) // 2, len(data) // 2 + 4)
    data[middle] = bytes(byte ^ 0xFF for byte in data[middle])
    largest.write_bytes(data)


@pytest.mark.parametrize("has_checksums", [True, False])
def test_store_damaged_in_the_middle_is_found_by_reading_all_of_it(outputs, capfd, has_checksums):
    job = compose_job("loader=np_memmap", *LARGE)
    prepared = prepare(job.dataset, job.loader.store)
    before = (prepared.folder / "0.npy").read_bytes()
    flip_bytes_in_the_middle(prepared.folder)
    if not has_checksums:
        facts = json.loads((prepared.folder / SEAL).read_text())
        del facts["checksums"]
        (prepared.folder / SEAL).write_text(json.dumps(facts))
    prepare(job.dataset, job.loader.store, compares_checksums=True)
    assert (prepared.folder / "0.npy").read_bytes() == before
    message = capfd.readouterr().err
    assert message.startswith(f"{prepared.folder}: ")
    assert message.endswith("; it is written again\n")
    prepare(job.dataset, job.loader.store, compares_checksums=True)
    assert capfd.readouterr().err == ""


def test_seal_of_a_damaged_store_is_broken_so_that_it_is_written_again(outputs):
    job = compose_job("loader=np_memmap", *LARGE)
    prepared = prepare(job.dataset, job.loader.store)
    assert find_damage(prepared) == ""
    before = (prepared.folder / "0.npy").read_bytes()
    flip_bytes_in_the_middle(prepared.folder)
    assert find_damage(prepared).startswith(f"{prepared.folder}: ")
    prepare(job.dataset, job.loader.store)
    assert (prepared.folder / "0.npy").read_bytes() == before


def test_damaged_reference_is_written_again(outputs):
    job = compose_job(*MYDATASET)
    first = prepare(job.dataset, None)
    truncate(first.reference)
    assert prepare(job.dataset, None) == first
    assert np.load(first.reference / "hashes.npy").shape == (203, 16)


def test_folder_sealed_for_other_data_is_written_again(tmp_path):
    folder, written = tmp_path / "folder", []

    def write(beside):
        written.append(beside)
        (beside / "rows").write_text(f"version {len(written)}")
        return {}

    for expected in ("a", "a", "b", "b"):
        assert write_once(folder, expected, write)["fingerprint"] == expected
    assert (folder / "rows").read_text() == "version 2"
    assert read_seal(folder, "a") is None
    assert read_seal(folder, "b") == read_seal(folder)


def test_failing_writer_leaves_no_store(outputs, monkeypatch):
    job = compose_job("loader=np_memmap", *MYDATASET)

    def fail(self, folder, chunks, num_samples):
        next(iter(chunks))
        (folder / "half").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(job.loader.store), "write", fail)
    with pytest.raises(OSError, match="No space left"):
        prepare(job.dataset, job.loader.store)
    assert [name for name in store_names(outputs) if "npy" in name] == []


def test_partial_store_of_a_killed_writer_is_removed(outputs):
    job = compose_job("loader=np_memmap", *MYDATASET)
    intact = prepare(job.dataset, job.loader.store)
    partial = intact.folder.with_name(f".{intact.folder.name}.partial")
    intact.folder.rename(partial)
    assert prepare(job.dataset, job.loader.store).folder.is_dir()
    assert not partial.exists()


def test_partial_stores_of_other_data_are_removed_unless_they_are_being_written(outputs):
    killed, written = (outputs / "stores" / f".{name}.partial" for name in ("killed", "written"))
    for path in (killed, written):
        path.mkdir(parents=True)
        (path / "0.npy").write_bytes(b"half")
    job = compose_job("loader=raw", *MYDATASET)
    with hold_lock(outputs / "stores" / "written"):
        prepare(job.dataset, None)
    assert not killed.exists()
    assert written.exists()


def test_replaced_stores_of_a_killed_writer_are_removed_or_put_back(outputs):
    stores = outputs / "stores"
    for name in ("whole", ".whole.replaced", ".missing.replaced"):
        (stores / name).mkdir(parents=True)
        (stores / name / "0.npy").write_text(name)
    prepare(compose_job("loader=raw", *MYDATASET).dataset, None)
    assert not [*stores.glob(".*.replaced")]
    read = [(stores / name / "0.npy").read_text() for name in ("whole", "missing")]
    assert read == ["whole", ".missing.replaced"]


@pytest.mark.heavy
def test_concurrent_preparations_write_one_store(outputs, tmp_path):
    program = tmp_path / "prepares.py"
    program.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from options import compose_job, MYDATASET\n"
        "from fastloop.data.prepare_dataset import prepare\n"
        "job = compose_job('loader=np_memmap', *MYDATASET)\n"
        "print(prepare(job.dataset, job.loader.store).seconds)"
    )
    arguments = str(program), (str(SUPPORT),), tmp_path, dict(os.environ)
    started = [fork_server.start(*arguments) for _ in range(2)]
    processes = [each.wait() for each in started]
    assert [process.returncode for process in processes] == [0, 0], processes
    seconds = {process.stdout for process in processes}
    assert len(seconds) == 1  # one writes the store, the other reads the duration from the seal
    assert len([name for name in store_names(outputs) if name.endswith(".npy")]) == 1


@pytest.mark.heavy
def test_decoding_in_several_processes_keeps_rows_and_order(outputs):
    job = compose_job("loader=np_memmap", "order=sequential", "batch_size=3000")
    prepared = prepare(SlowDataset(), job.loader.store)
    wanted = (torch.arange(3000.0).view(-1, 1, 1).expand(-1, 2, 2), torch.arange(3000))
    assert (np.load(prepared.reference / "hashes.npy") == sample_hashes(wanted, None)).all()
    with job.loader.open(prepared, job.plan(0)) as epochs:
        ((data, targets),) = epochs(0)
    assert torch.equal(data, wanted[0])
    assert torch.equal(targets, wanted[1])


class Triples:
    label, num_classes, uint8_scale = "triples", None, None

    def fetch(self):
        return "triples-1"

    def open(self):
        return [
            {"a": torch.tensor([1.0]), "b": [torch.tensor([2, 3]), index]} for index in range(5)
        ]


def test_npy_keeps_any_tree_and_tensordict_rejects_it(outputs):
    npy, pair = compose_job("loader=np_memmap"), compose_job("loader=tensorclass")
    prepared = prepare(Triples(), npy.loader.store)
    with npy.loader.open(prepared, npy.plan(0)) as epochs:
        (batch,) = epochs(0)
    assert sorted(batch["b"][1].tolist()) == [0, 1, 2, 3, 4]
    assert batch["b"][0].tolist() == [[2, 3]] * 5
    with pytest.raises(Unsupported, match="input, label"):
        prepare(Triples(), pair.loader.store)


class LabelledTree:
    """(dict, label) samples."""

    label, num_classes, uint8_scale = "labelled", None, None

    def fetch(self):
        return "labelled-1"

    def open(self):
        return [({"a": torch.tensor([1.0])}, index) for index in range(5)]


def test_tensordict_rejects_a_tree_with_a_label(outputs):
    with pytest.raises(Unsupported, match="input, label"):
        prepare(LabelledTree(), compose_job("loader=tensorclass").loader.store)


class Odd:
    """Samples that are equal except at some places."""

    label, num_classes, uint8_scale = "odd", None, None

    def __init__(self, usual, odd, places):
        self.usual, self.odd, self.places = usual, odd, places

    def fetch(self):
        return "odd-1"

    def open(self):
        return [self.odd if index in self.places else self.usual for index in range(1500)]


PLAIN = (torch.zeros(2), 1)


@pytest.mark.parametrize(
    ("usual", "odd", "message"),
    [
        ({"a": PLAIN[0]}, {"a": PLAIN[0], "b": PLAIN[0]}, r"\{a: float32\[2\]\}.*b: float32"),
        ({"a": PLAIN[0], "b": 1}, {"a": PLAIN[0]}, r"b: int.*\{a: float32\[2\]\}"),
        ({"a": PLAIN[0]}, {"b": PLAIN[0]}, r"\{a: float32\[2\]\}.*\{b: float32\[2\]\}"),
        (PLAIN, PLAIN[:1], r"\(float32\[2\], int.*\(float32\[2\],\)"),
        (PLAIN, list(PLAIN), r"\(float32\[2\], int.*\[float32\[2\], int"),
        (PLAIN, (torch.zeros(3), 1), r"float32\[2\].*float32\[3\]"),
        (PLAIN, (torch.zeros(2).double(), 1), r"float32\[2\].*float64\[2\]"),
        ((np.zeros(2), 1), (np.zeros(2, np.float32), 1), r"float64\[2\].*float32\[2\]"),
        (PLAIN, (PLAIN[0], 1.5), r"int.*float"),
    ],
)
def test_prepare_names_samples_whose_trees_differ(outputs, usual, odd, message):
    with pytest.raises(BadData, match=r"^samples differ: 0 is .*, 5 is ") as error:
        prepare(Odd(usual, odd, [5]), None)
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)
    if not isinstance(odd, list):  # collated lists and tuples are equal
        with pytest.raises(BadData, match=r"^samples differ: those before 1024 are .*, 1024 is "):
            prepare(Odd(usual, odd, range(1024, 1500)), None)


def test_prepare_accepts_python_and_numpy_numbers_of_one_dtype(outputs):
    dataset = Odd(
        (PLAIN[0], 1, 0.5, True), (PLAIN[0], np.int64(1), np.float64(0.5), np.bool_(1)), [5]
    )
    assert prepare(dataset, None).num_samples == 1500


@pytest.mark.parametrize("leaf", ["a.jpg", b"bytes"])
def test_prepare_names_a_leaf_that_is_no_tensor(outputs, leaf):
    sample = {"image": torch.zeros(2), "name": leaf}
    with pytest.raises(
        BadData, match=f": samples hold {type(leaf).__name__}; only tensors, arrays and"
    ):
        prepare(Odd(sample, sample, []), None)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not quite", b"plain text"])
def test_mydataset_names_a_foreign_npz_file(outputs, content):
    dataset = compose_job(*MYDATASET).dataset
    dataset.path.parent.mkdir(parents=True)
    dataset.path.write_bytes(content)
    with pytest.raises(BadData, match=dataset.path.name):
        prepare(dataset, None)


@pytest.mark.parametrize(
    "arrays",
    [
        {"data": np.ones((3, 2))},
        {"data": np.ones((3, 2)), "targets": np.ones(2)},
        {"data": np.array([None, 1]), "targets": np.ones(2)},
    ],
)
def test_mydataset_names_an_npz_file_with_other_arrays(outputs, arrays):
    dataset = compose_job(*MYDATASET).dataset
    dataset.path.parent.mkdir(parents=True)
    np.savez(dataset.path, **arrays)
    with pytest.raises(BadData, match=dataset.path.name):
        prepare(dataset, None)


def test_fashion_mnist_reads_the_real_files_and_repeats_them(outputs, fashion_root):
    overrides = (f"dataset.root={fashion_root}", "dataset.download=false")
    once, thrice = (
        compose_job("dataset=fashion_mnist", *overrides, f"dataset.repeat={k}").dataset
        for k in (1, 3)
    )
    assert len(once.open()) == 800
    assert len(thrice.open()) == 2400
    assert once.label == "fashion_mnist"
    assert "x 3" in thrice.label
    assert torch.equal(once.open()[7][0], thrice.open()[1607][0])
    assert once.fetch() != thrice.fetch()
    test = compose_job("dataset=fashion_mnist", *overrides, "dataset.train=false").dataset
    assert len(test.open()) == 100


def test_fashion_mnist_names_the_folder_of_its_missing_files(outputs, tmp_path):
    dataset = compose_job(
        "dataset=fashion_mnist", f"dataset.root={tmp_path}", "dataset.download=false"
    ).dataset
    with pytest.raises(BadData, match=r"FashionMNIST/raw, or use dataset=digits"):
        dataset.fetch()


class ChangedCodeTriples(Triples):
    """The samples of Triples, from code that has changed since their store was written."""

    def fetch(self):
        return "triples-2"


class ReversedTriples(Triples):
    def fetch(self):
        return "triples-3"

    def open(self):
        return super().open()[::-1]


def test_store_is_reused_after_the_code_of_its_dataset_has_changed(outputs):
    store = compose_job("loader=np_memmap").loader.store
    first = prepare(Triples(), store)
    assert prepare(ChangedCodeTriples(), store).folder == first.folder
    assert prepare(ReversedTriples(), store).folder != first.folder


class Form:
    """Samples with the same bytes in any of several forms."""

    label, num_classes, uint8_scale = "form", None, None

    def __init__(self, form):
        self.form = form

    def fetch(self):
        return self.form

    def open(self):
        rows = [torch.arange(6.0) + index for index in range(5)]
        made = {
            "row": lambda row: row,
            "matrix": lambda row: row.view(2, 3),
            "dict": lambda row: {"a": row},
            "two": lambda row: (row[:3], row[3:]),
            "bits": lambda row: row.view(torch.int32),
        }
        return [made[self.form](row) for row in rows]


@pytest.mark.parametrize("form", ["matrix", "dict", "two", "bits"])
def test_store_is_not_reused_for_samples_of_the_same_bytes_in_another_form(outputs, form):
    store = compose_job("loader=np_memmap").loader.store
    first, second = prepare(Form("row"), store), prepare(Form(form), store)
    hashes = [(each.reference / "hashes.npy").read_bytes() for each in (first, second)]
    assert hashes[0] == hashes[1]
    assert second.folder != first.folder
    assert prepare(Form(form), store).folder == second.folder


class OwnStore:
    """A store of a user's: a class without fields."""

    def __init__(self, root, factor=1, codec=None):
        self.root, self.factor, self.codec = root, factor, codec or object()

    def write(self, folder, chunks, num_samples):
        np.save(folder / "rows.npy", self.factor * np.concatenate([*chunks]))

    def open(self, folder):
        return np.load(folder / "rows.npy")


class OtherStore(OwnStore):
    def write(self, folder, chunks, num_samples):
        np.save(folder / "rows.npy", -np.concatenate([*chunks]))


def test_a_users_stores_are_told_apart_by_class_and_settings(outputs):
    kinds = (OwnStore, OtherStore, partial(OwnStore, factor=2), partial(OwnStore, factor=3))
    stores = [kind(str(outputs / "stores")) for kind in kinds]
    dataset = Form("row")
    opened = [each.open(prepare(dataset, each).folder) for each in stores]
    assert [rows[1].tolist() for rows in opened] == [
        [factor * value for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)] for factor in (1, -1, 2, 3)
    ]
    again = prepare(dataset, OwnStore(str(outputs / "stores"), factor=2))
    assert again.folder == prepare(dataset, stores[2]).folder


def test_a_users_datasets_of_one_module_are_told_apart(outputs):
    class First(Form):
        def fetch(self):
            return "version 1"

    class Second(First):
        pass

    first, second = (prepare(kind(form), None) for kind, form in ((First, "row"), (Second, "two")))
    assert first.fingerprint != second.fingerprint
    assert len(second.sample) == 2


def test_store_is_written_again_after_its_own_format_has_changed(outputs, monkeypatch):
    store = compose_job("loader=np_memmap").loader.store
    first = prepare(Triples(), store)
    monkeypatch.setattr(type(store), "format_version", 2)
    assert prepare(ChangedCodeTriples(), store).folder != first.folder


@pytest.mark.parametrize("loader", LOADER_OF_EACH_STORE)
def test_every_store_has_the_version_of_its_format(loader):
    assert compose_job(f"loader={loader}").loader.store.format_version >= 1
