"""Page cache: setting its state, and the caveats that a run reports about it."""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys
from pathlib import Path

import image_samples
import own_files
import pytest
from options import compose_job, disk_only, options

from fastloop.core.launcher import RankTask
from fastloop.core.protocols import HasFiles
from fastloop.core.result import Measurement, Result, Trial
from fastloop.core.result_io import load, save
from fastloop.core.spans import now_ns
from fastloop.core.types import Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.options.launcher.single import SingleLauncher
from fastloop.sweep.caveats import cache_caveats
from fastloop.trial import page_cache
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.page_cache import evict, resident_fraction, total_mib, warm
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

MIB = 2**20
LARGE = ("dataset=mydataset", "dataset.count=10000", "benchmark=traversal", "epochs=1")
"""30 MiB, of which headers and read-ahead are a small part."""


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
def test_page_cache_evicts_and_warms_files(folder):
    assert resident_fraction([folder]) > 0.99
    evict([folder])
    assert resident_fraction([folder]) == 0.0
    assert resident_fraction([folder]) == 0.0  # the query reads nothing
    warm([folder])
    assert resident_fraction([folder]) > 0.99  # the system may reclaim a page at any time
    assert total_mib([folder, folder / "one"]) == pytest.approx(8, abs=0.001)


@disk_only
def test_resident_fraction_is_weighted_by_file_size(tmp_path):
    paths = [tmp_path / "large", tmp_path / "small"]
    for path, mib in zip(paths, (3, 1), strict=True):
        path.write_bytes(bytes(mib * MIB))
    evict(paths[:1])
    assert resident_fraction(paths) == pytest.approx(0.25)


@disk_only
def test_evict_keeps_the_pages_that_a_mapping_has_touched(folder):
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


def test_resident_fraction_is_none_without_data_or_permission(folder, monkeypatch):
    assert resident_fraction([]) is None
    assert resident_fraction([folder / "empty"]) is None
    monkeypatch.setattr(page_cache, "_may_query", lambda path: path.name == "one")
    assert resident_fraction([folder]) is None


def run_traversal(prepared_job, *overrides):
    job, prepared = prepared_job(*LARGE, *overrides)
    return run_trial(job, prepared, 0, now_ns())


@pytest.mark.heavy
@disk_only
@pytest.mark.parametrize(
    ("loader", "workers"),
    [
        ("np_memmap", ()),
        ("tensorclass_memmap", ()),
        ("torch_storage", ("num_workers=1", "persistent_workers=true")),
    ],
)
def test_cold_window_starts_cold_after_the_gates_epoch(prepared_job, loader, workers):
    trial = run_traversal(prepared_job, f"loader={loader}", "cache=cold", *workers)
    measurement = trial.benchmarks["traversal"]
    assert measurement.cached_before > 0.99
    assert measurement.cached_fraction < 0.05
    assert trial.data_mib == pytest.approx(10_000 * (28 * 28 * 4 + 8) / MIB, rel=0.01)


@disk_only
@pytest.mark.heavy
def test_every_benchmark_starts_with_a_cold_cache(prepared_job):
    job, prepared = prepared_job(*LARGE, "loader=np_memmap", "cache=cold")
    twice = dict.fromkeys(("first", "second"), job.benchmark["traversal"])
    trial = run_trial(dataclasses.replace(job, benchmark=twice), prepared, 0, now_ns())
    assert [measurement.cached_fraction < 0.05 for measurement in trial.benchmarks.values()] == [
        True,
        True,
    ]


@pytest.mark.heavy
@disk_only
def test_warm_window_starts_warm_after_an_eviction(prepared_job):
    job, prepared = prepared_job(*LARGE, "loader=preload", "cache=warm")
    with job.loader.open(prepared, job.plan(0)):
        pass
    evict(prepared.files)
    measurement = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measurement.cached_fraction > 0.99


@pytest.mark.heavy
@disk_only
@pytest.mark.parametrize("loader", ["preload", "raw"])
def test_loader_that_reads_everything_in_open_gets_a_cache_caveat(prepared_job, loader):
    trial = run_traversal(prepared_job, f"loader={loader}", "cache=cold")
    assert cache_caveats(result_of(trial)) == ["cache=cold: 100 % of the data was still in memory"]


@pytest.mark.heavy
@disk_only
def test_instrumentation_reads_the_disk_only_with_a_cold_cache(prepared_job):
    launcher = SingleLauncher(isolation="forkserver")
    read_mib = {"warm": [], "cold": []}
    # Imports are read from the disk too if the system has dropped their pages: noise only adds.
    for state in ("warm", "warm", "warm", "cold"):
        job, prepared = prepared_job(*LARGE, "loader=np_memmap", f"cache={state}")
        task = RankTask(function=run_instrumentation, args=(job, prepared, "traversal"))
        [answer] = launcher.call_ranks(task, observed=True)
        read_mib[state].append(answer.resources.read_mib)
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


def trial_with_fraction(fraction, data_mib=12.0):
    measurement = Measurement(
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
        benchmarks={"traversal": measurement},
        torch_threads=1,
        multiprocessing_context=None,
        load_average=None,
        data_mib=data_mib,
    )


def test_cache_caveats_of_a_cold_run():
    message = "the data (12.0 MiB) is smaller than memory (16 GiB): "
    message += "at most the first epoch of each window reads the disk"
    assert cache_caveats(result_of(trial_with_fraction(0.01))) == []
    assert cache_caveats(result_of(trial_with_fraction(0.4), trial_with_fraction(0.01))) == [
        "cache=cold: 40 % of the data was still in memory"
    ]
    assert cache_caveats(result_of(trial_with_fraction(0.01), epochs=5)) == [message]
    assert cache_caveats(result_of(trial_with_fraction(0.01, 32_000.0), epochs=5)) == []
    (caveat,) = cache_caveats(result_of(trial_with_fraction(None)))
    assert "does not report" in caveat


@pytest.mark.parametrize("state", ["as_is", "warm"])
def test_cache_caveats_are_empty_unless_the_cache_is_cold(state):
    assert cache_caveats(result_of(trial_with_fraction(1.0), epochs=5, cache=state)) == []


def test_cache_state_survives_saving_and_loading(tmp_path):
    result = dataclasses.replace(result_of(trial_with_fraction(0.4)), caveats=["a caveat"])
    save(result, tmp_path)
    assert load(tmp_path) == result


NO_FILES = {"custom", "integers", "nested", "slow_reads", "synthetic"}
"""Datasets whose samples are generated, or read by user code."""


@pytest.mark.heavy
@pytest.mark.parametrize("dataset", options("dataset"))
def test_dataset_that_reads_files_lists_them(dataset, outputs, tmp_path, request):
    if dataset in NO_FILES:
        assert not isinstance(compose_job(f"dataset={dataset}").dataset, HasFiles)
        return
    small = {
        "mydataset": lambda: "dataset.count=203",
        "fashion_mnist": lambda: f"dataset.root={request.getfixturevalue('fashion_root')}",
        "photos": lambda: "dataset.count=4",
        "image_folder": lambda: (
            f"dataset.root={image_samples.write_class_folders(tmp_path / 'images')}"
        ),
        "csv_images": lambda: f"dataset.csv_file={image_samples.write_faces(tmp_path / 'faces')}",
        **{
            name: lambda name=name: f"dataset.path={own_files.WRITERS[name](tmp_path)}"
            for name in own_files.WRITERS
        },
    }
    settings = [small[dataset]()] if dataset in small else []
    job = compose_job(f"dataset={dataset}", "loader=raw", *settings)
    prepared = prepare(job.dataset, None)
    assert isinstance(job.dataset, HasFiles)
    assert prepared.files
    assert all(path.exists() for path in prepared.files)
    assert total_mib(prepared.files) > 0


class FilelessDataset:
    """Dataset without files()."""

    label, num_classes, uint8_scale = "fileless", 2, None

    def fetch(self):
        return ""

    def open(self):
        return []


@pytest.mark.parametrize("state", ["warm", "cold"])
def test_cache_state_needs_a_dataset_that_lists_its_files(state):
    job = dataclasses.replace(
        compose_job("loader=raw", f"cache={state}"), dataset=FilelessDataset()
    )
    with pytest.raises(Unsupported, match=f"cache={state}: the dataset does not name its files"):
        check_support(job)
    if sys.platform == "linux":
        check_support(compose_job("loader=np_memmap", f"cache={state}"))
