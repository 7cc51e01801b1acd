"""The page cache brought into a state, and what a run says of it."""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys
from pathlib import Path

import pictures
import pytest
from options import compose_job, disk_only, options

from fastloop import page_cache
from fastloop.cache_state import cache_warnings
from fastloop.job import check_support
from fastloop.launchers.single import Single
from fastloop.page_cache import evict, resident_fraction, total_mib, warm
from fastloop.prepared import prepare
from fastloop.protocols import OnDisk
from fastloop.result import Measured, Result, Trial, load, save
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_trial
from fastloop.types import Unsupported

MIB = 2**20
MUCH = ("dataset=mydataset", "dataset.count=10000", "benchmark=traversal", "epochs=1")
"""30 MiB: a header and what is read ahead with it are little of it."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Files of 8 MiB, 1 byte and 0 bytes, freshly written."""
    inner = tmp_path / "store" / "inner"
    inner.mkdir(parents=True)
    (inner / "data").write_bytes(os.urandom(8 * MIB))
    (inner.parent / "one").write_bytes(b"1")
    (inner.parent / "empty").touch()
    return inner.parent


@disk_only
def test_files_go_from_cached_to_evicted_to_cached(folder):
    assert resident_fraction([folder]) > 0.99
    evict([folder])
    assert resident_fraction([folder]) == 0.0
    assert resident_fraction([folder]) == 0.0  # asking reads nothing
    warm([folder])
    assert resident_fraction([folder]) > 0.99  # the system may take a page back at any time
    assert total_mib([folder, folder / "one"]) == pytest.approx(8, abs=0.001)


@disk_only
def test_the_fraction_is_weighted_by_size(tmp_path):
    paths = [tmp_path / "large", tmp_path / "small"]
    for path, mib in zip(paths, (3, 1), strict=True):
        path.write_bytes(bytes(mib * MIB))
    evict(paths[:1])
    assert resident_fraction(paths) == pytest.approx(0.25)


@disk_only
def test_a_mapping_keeps_only_the_pages_that_were_touched(folder):
    path = folder / "inner" / "data"
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    evict([path])
    assert resident_fraction([path]) == 0.0
    mapped.read()
    evict([path])
    assert resident_fraction([path]) == 1.0
    mapped.close()
    evict([path])
    assert resident_fraction([path]) == 0.0


def test_nothing_is_told_of_nothing_nor_of_a_file_that_is_not_ours(folder, monkeypatch):
    assert resident_fraction([]) is None
    assert resident_fraction([folder / "empty"]) is None
    monkeypatch.setattr(page_cache, "_may_ask", lambda path: path.name == "one")
    assert resident_fraction([folder]) is None


def trial_of(prepared_job, *overrides):
    job, prepared = prepared_job(*MUCH, *overrides)
    return run_trial(job, prepared, 0, now_ns())


@disk_only
@pytest.mark.parametrize("workers", [(), ("num_workers=1", "persistent_workers=true")])
@pytest.mark.parametrize("loader", ["np_memmap", "tensorclass_memmap", "torch_storage"])
def test_a_cold_window_begins_cold_though_an_epoch_was_checked_before(
    prepared_job, loader, workers
):
    trial = trial_of(prepared_job, f"loader={loader}", "cache=cold", *workers)
    seen = trial.benchmarks["traversal"]
    assert seen.cached_before > 0.99
    assert seen.cached_fraction < 0.05
    assert trial.data_mib == pytest.approx(10_000 * (28 * 28 * 4 + 8) / MIB, rel=0.01)


@disk_only
def test_every_benchmark_begins_cold(prepared_job):
    job, prepared = prepared_job(*MUCH, "loader=np_memmap", "cache=cold")
    twice = dict.fromkeys(("first", "second"), job.benchmark["traversal"])
    trial = run_trial(dataclasses.replace(job, benchmark=twice), prepared, 0, now_ns())
    assert [one.cached_fraction < 0.05 for one in trial.benchmarks.values()] == [True, True]


@disk_only
def test_a_warm_window_begins_warm_though_the_files_were_evicted(prepared_job):
    job, prepared = prepared_job(*MUCH, "loader=preload", "cache=warm")
    with job.loader.open(prepared, job.plan(0)):
        pass
    evict(prepared.files)
    seen = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert seen.cached_fraction > 0.99


@disk_only
@pytest.mark.parametrize("loader", ["preload", "tensorclass", "raw", "index_loop"])
def test_a_loader_that_reads_everything_in_open_is_not_cold_and_says_so(prepared_job, loader):
    trial = trial_of(prepared_job, f"loader={loader}", "cache=cold")
    assert cache_warnings(result_of(trial)) == ["asked for a cold cache, 100% was cached"]


@disk_only
def test_a_cold_instrumented_pass_reads_from_the_disk_and_a_warm_one_does_not(prepared_job):
    launcher = Single(isolation="forkserver")
    read_mib = {"warm": [], "cold": []}
    # What is imported may have to be read too, if the system has taken its pages: noise only adds.
    for state in ("warm", "warm", "warm", "cold"):
        job, prepared = prepared_job(*MUCH, "loader=np_memmap", f"cache={state}")
        work = (run_instrumented, job, prepared, "traversal")
        [(_, seen)] = launcher.call_ranks(*work, observed=True)
        read_mib[state].append(seen.read_mib)
    assert min(read_mib["warm"]) < 25
    assert read_mib["cold"][0] > 55  # once from `open` on, once in the epoch with spans


def result_of(*trials, epochs=1, cache="cold", memory_gib=16.0):
    return Result(
        name="",
        loader="",
        dataset="",
        params={"cache": cache, "epochs": epochs},
        tags={},
        trials=list(trials),
        environment={"memory_gib": memory_gib},
    )


def seen_of(fraction, data_mib=12.0):
    measured = Measured(
        start_ns=0,
        stop_ns=1,
        epochs=1,
        samples=1,
        limit_samples_per_s=1.0,
        cached_fraction=fraction,
    )
    return Trial(
        number=0,
        seed=0,
        benchmarks={"traversal": measured},
        torch_threads=1,
        multiprocessing_context=None,
        load_average=None,
        data_mib=data_mib,
    )


def test_what_a_cold_run_says():
    small = "the data (12.0 MiB) is smaller than memory (16 GiB): "
    small += "at most the first epoch of each window reads the disk"
    assert cache_warnings(result_of(seen_of(0.01))) == []
    assert cache_warnings(result_of(seen_of(0.4), seen_of(0.01))) == [
        "asked for a cold cache, 40% was cached"
    ]
    assert cache_warnings(result_of(seen_of(0.01), epochs=5)) == [small]
    assert cache_warnings(result_of(seen_of(0.01, 32_000.0), epochs=5)) == []
    (untold,) = cache_warnings(result_of(seen_of(None)))
    assert "does not tell" in untold


@pytest.mark.parametrize("state", ["as_is", "warm"])
def test_only_a_cold_run_makes_a_claim_about_disks(state):
    assert cache_warnings(result_of(seen_of(1.0), epochs=5, cache=state)) == []


def test_the_state_of_the_cache_comes_back_from_a_file(tmp_path):
    result = dataclasses.replace(result_of(seen_of(0.4)), flags=["a flag"])
    save(result, tmp_path)
    assert load(tmp_path) == result


NO_FILES = {"custom", "integers", "nested", "synthetic"}
"""Datasets whose samples are made, or read by somebody else's code."""


@pytest.mark.parametrize("dataset", options("dataset"))
def test_every_dataset_that_reads_files_tells_them(dataset, outputs, tmp_path, request):
    if dataset in NO_FILES:
        assert not isinstance(compose_job(f"dataset={dataset}").dataset, OnDisk)
        return
    small = {
        "mydataset": lambda: "dataset.count=203",
        "fashion_mnist": lambda: f"dataset.root={request.getfixturevalue('fashion_root')}",
        "photos": lambda: "dataset.count=4",
        "image_folder": lambda: f"dataset.root={pictures.tree(tmp_path / 'images')}",
        "csv_images": lambda: f"dataset.csv_file={pictures.faces(tmp_path / 'faces')}",
    }
    settings = [small[dataset]()] if dataset in small else []
    job = compose_job(f"dataset={dataset}", "loader=raw", *settings)
    prepared = prepare(job.dataset, None)
    assert isinstance(job.dataset, OnDisk)
    assert prepared.files
    assert all(path.exists() for path in prepared.files)
    assert total_mib(prepared.files) > 0


class Untold:
    """A dataset without files()."""

    label, num_classes, uint8_scale = "untold", 2, None

    def fetch(self):
        return ""

    def open(self):
        return []


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_a_state_that_cannot_be_made_is_unsupported(state):
    job = dataclasses.replace(compose_job("loader=raw", f"cache={state}"), dataset=Untold())
    with pytest.raises(Unsupported, match=f"cache={state}: the dataset does not tell its files"):
        check_support(job)
    if sys.platform == "linux":
        check_support(compose_job("loader=np_memmap", f"cache={state}"))
