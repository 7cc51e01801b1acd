"""Stores: written once, whole or not at all, never read as if good."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from options import MYDATASET, compose_job, options, skip_without_its_library
from slow import SlowDataset

from fastloop.digest import sample_hashes
from fastloop.optional import check_libraries
from fastloop.prepared import SEAL, prepare
from fastloop.types import BadData, Unsupported

STORED = [loader for loader in options("loader") if compose_job(f"loader={loader}").loader.store]
ONE_A_STORE = list(
    {type(compose_job(f"loader={name}").loader.store): name for name in STORED}.values()
)


def stored(job):
    """The job's dataset in its store; skipped where the store's library is absent."""
    try:
        check_libraries(job.loader)
        return prepare(job.dataset, job.loader.store)
    except Unsupported as why:
        skip_without_its_library(why)
        raise


def written(prepared) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in prepared.folder.rglob("*")}


def files(outputs) -> list[str]:
    return sorted(
        path.name for path in (outputs / "stores").iterdir() if not path.name.endswith(".lock")
    )


@pytest.mark.parametrize("loader", ONE_A_STORE)
def test_a_store_is_written_once_and_then_reused(outputs, loader):
    job = compose_job(f"loader={loader}", *MYDATASET)
    first = stored(job)
    before = written(first)
    assert first.seconds > 0
    assert first.disk_mib > 0
    assert prepare(job.dataset, job.loader.store) == first
    assert written(first) == before


@pytest.mark.parametrize("loader", STORED)
def test_a_changed_dataset_is_written_anew(outputs, loader):
    job = compose_job(f"loader={loader}", *MYDATASET)
    first = stored(job)
    archive = dict(np.load(job.dataset.path))
    np.savez_compressed(job.dataset.path, data=archive["data"] + 1, targets=archive["targets"])
    second = prepare(job.dataset, job.loader.store)
    assert second.fingerprint != first.fingerprint
    with job.loader.open(second, job.plan(0)) as epochs:
        assert min(float(source.min()) for source, _ in epochs(0)) >= 1


def truncate(folder):
    largest = max(folder.rglob("*"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)


def flip_a_byte_at_the_front(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.name != SEAL and path.suffix != ".json":
            data = bytearray(path.read_bytes())
            data[8] ^= 0xFF
            path.write_bytes(data)


def lose_the_seal(folder):
    (folder / SEAL).unlink()


def seal_of_another(folder):
    facts = json.loads((folder / SEAL).read_text())
    (folder / SEAL).write_text(json.dumps(facts | {"fingerprint": "another"}))


def seal_of_nonsense(folder):
    (folder / SEAL).write_text("[1, 2")


def lose_a_file(folder):
    next(path for path in folder.iterdir() if path.name != SEAL and path.is_file()).unlink()


@pytest.mark.parametrize(
    "harm",
    [
        truncate,
        flip_a_byte_at_the_front,
        lose_the_seal,
        seal_of_another,
        seal_of_nonsense,
        lose_a_file,
    ],
)
@pytest.mark.parametrize("loader", ONE_A_STORE)
def test_a_harmed_store_is_written_anew(outputs, loader, harm):
    job = compose_job(f"loader={loader}", *MYDATASET)
    good = stored(job)
    before = {path.name: path.read_bytes() for path in good.folder.rglob("*") if path.is_file()}
    harm(good.folder)
    again = prepare(job.dataset, job.loader.store)
    after = {path.name: path.read_bytes() for path in again.folder.rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if k != SEAL} == {
        k: v for k, v in before.items() if k != SEAL
    }


def test_a_harmed_reference_is_made_anew(outputs):
    job = compose_job(*MYDATASET)
    first = prepare(job.dataset, None)
    truncate(first.reference)
    assert prepare(job.dataset, None) == first
    assert np.load(first.reference / "hashes.npy").shape == (203, 16)


def test_a_writer_that_fails_leaves_nothing(outputs, monkeypatch):
    job = compose_job("loader=np_memmap", *MYDATASET)

    def fail(self, folder, chunks, num_samples):
        next(iter(chunks))
        (folder / "half").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(job.loader.store), "write", fail)
    with pytest.raises(OSError, match="No space left"):
        prepare(job.dataset, job.loader.store)
    assert [name for name in files(outputs) if "npy" in name] == []


def test_what_a_killed_writer_left_is_removed(outputs):
    job = compose_job("loader=np_memmap", *MYDATASET)
    good = prepare(job.dataset, job.loader.store)
    left = good.folder.with_name(f".{good.folder.name}.partial")
    good.folder.rename(left)
    assert prepare(job.dataset, job.loader.store).folder.is_dir()
    assert not left.exists()


def test_two_preparations_at_once_build_one_store(outputs):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from options import compose_job, MYDATASET; from fastloop.prepared import prepare\n"
        "job = compose_job('loader=np_memmap', *MYDATASET)\n"
        "print(prepare(job.dataset, job.loader.store).seconds)"
    )
    command = [sys.executable, "-c", program, os.path.dirname(__file__)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    seconds = {one.communicate()[0] for one in both}
    assert [one.returncode for one in both] == [0, 0]
    assert len(seconds) == 1  # one wrote it, the other read in the seal what that took
    assert len([name for name in files(outputs) if name.endswith(".npy")]) == 1


def test_decoding_in_several_processes_gives_the_same_rows_in_order(outputs):
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


def test_npy_keeps_any_tree_and_tensordict_says_that_it_does_not(outputs):
    npy, pair = compose_job("loader=np_memmap"), compose_job("loader=tensorclass")
    prepared = prepare(Triples(), npy.loader.store)
    with npy.loader.open(prepared, npy.plan(0)) as epochs:
        (batch,) = epochs(0)
    assert sorted(batch["b"][1].tolist()) == [0, 1, 2, 3, 4]
    assert batch["b"][0].tolist() == [[2, 3]] * 5
    with pytest.raises(Unsupported, match="input, label"):
        prepare(Triples(), pair.loader.store)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not quite", b"plain text"])
def test_a_foreign_npz_is_named(outputs, content):
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
def test_an_npz_with_other_arrays_is_named(outputs, arrays):
    dataset = compose_job(*MYDATASET).dataset
    dataset.path.parent.mkdir(parents=True)
    np.savez(dataset.path, **arrays)
    with pytest.raises(BadData, match=dataset.path.name):
        prepare(dataset, None)


def test_fashion_mnist_reads_the_real_files_and_repeats_them(outputs, fashion_root):
    where = (f"dataset.root={fashion_root}", "dataset.download=false")
    once, thrice = (
        compose_job("dataset=fashion_mnist", *where, f"dataset.repeat={k}").dataset for k in (1, 3)
    )
    assert len(once.open()) == 800
    assert len(thrice.open()) == 2400
    assert once.label == "fashion_mnist"
    assert "x 3" in thrice.label
    assert torch.equal(once.open()[7][0], thrice.open()[1607][0])
    assert once.fetch() != thrice.fetch()
    test = compose_job("dataset=fashion_mnist", *where, "dataset.train=false").dataset
    assert len(test.open()) == 100


def test_absent_fashion_mnist_says_which_files_belong_where(outputs, tmp_path):
    dataset = compose_job(
        "dataset=fashion_mnist", f"dataset.root={tmp_path}", "dataset.download=false"
    ).dataset
    with pytest.raises(BadData, match=r"FashionMNIST/raw, or use dataset=digits"):
        dataset.fetch()
