"""experiments/peers: loaders of other libraries, hardware limits as loaders, and the script for
figures that a traversal can't measure."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice
from shutil import which

import numpy as np
import os_threads
import pytest
import torch
from batches import child_processes, collate_all, rows, sizes
from options import compose_job, require_library, skip_or_fail

from experiments.peers import (
    bare_integers,
    factors,
    growth,
    larger_than_memory,
    processes,
    run,
    waits_and_start,
    workloads,
)
from experiments.peers.lines import table
from experiments.peers.loader.gather import gather_library
from fastloop.core.index_batches import epoch_indices
from fastloop.data.prepare_dataset import prepare
from fastloop.trial.support import check_support

IN_THREADS = ("grain", "spdl")
SMALL = ("dataset=peers/jpegs", "dataset.count=10", "dataset.crop=[60,80]", "dataset.size=[20,30]")


@pytest.fixture
def compiler():
    if which("cc") is None:
        skip_or_fail("no C compiler")


@pytest.fixture
def forked_processes(monkeypatch):
    """Let processes be forks of a server that has imported torch, which takes 2 s in each."""
    monkeypatch.setattr(processes, "START_METHOD", "forkserver")


def compose_and_prepare(outputs, *overrides):
    job = compose_job(*overrides)
    check_support(job)
    return job, prepare(job.dataset, job.loader.store, job.collate.tolerant)


@pytest.mark.parametrize("loader", IN_THREADS)
def test_peer_loader_decodes_samples_in_threads(outputs, loader):
    require_library(loader)
    job, prepared = compose_and_prepare(
        outputs, f"loader=peers/{loader}_decoding", "dataset=digits"
    )
    expected, plan = rows([collate_all(job.dataset)]), job.plan(seed=3)
    order = epoch_indices(plan.order, len(expected), 3, 0).tolist()
    with job.loader.open(prepared, plan) as epochs:
        assert rows(epochs(0)) == [expected[index] for index in order]


@pytest.mark.parametrize("loader", IN_THREADS)
def test_peer_loader_raises_the_error_of_a_broken_sample(outputs, loader):
    require_library(loader)
    overrides = ("loader=" + loader, "loader.store=null", "batch_size=4", "order=sequential")
    job = compose_job(*overrides, "dataset._target_=my_code.FailingSamples")
    prepared = prepare(compose_job("dataset._target_=my_code.Squares").dataset, None, False)
    before = os_threads.count_threads(), child_processes()
    with job.loader.open(replace(prepared, dataset=job.dataset), job.plan(0)) as epochs:
        batches = iter(epochs(0))
        assert sizes(islice(batches, 4)) == [4] * 4
        with pytest.raises(ValueError, match="boom"):
            next(batches)
    assert os_threads.falls_to(before[0])
    assert child_processes() == before[1]


@pytest.mark.parametrize("ahead", [0, 3])
def test_c_library_gathers_rows(outputs, compiler, ahead):
    gather = gather_library().gather_batches
    source = np.random.default_rng(0).integers(256, size=(50, 7), dtype=np.uint8)
    indices, batch = np.random.default_rng(1).permutation(50)[:33], np.zeros((16, 7), np.uint8)
    gather(source.ctypes.data, batch.ctypes.data, indices.ctypes.data, 32, 16, 7, ahead)
    assert (batch == source[indices[16:32]]).all()
    gather(source.ctypes.data, batch.ctypes.data, indices[32:].ctypes.data, 1, 16, 7, ahead)
    assert (batch[0] == source[indices[32]]).all()
    assert (batch[1:] == source[indices[17:32]]).all()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("row", ["gather", "gather_mapped"])
def test_limit_loader_delivers_batches_like_its_workload(outputs, compiler, row, drop_last):
    settings = ("dataset=mydataset", "dataset.count=203", f"drop_last={str(drop_last).lower()}")
    job, prepared = compose_and_prepare(outputs, f"loader=peers/{row}", "batch_size=16", *settings)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    assert sizes(batches) == [16] * 12 + [11] * (not drop_last)
    kinds = {(data.dtype, data.shape[1:], target.dtype) for data, target in batches}
    assert kinds == {(torch.float32, (28, 28), torch.int64)}
    # every row of a gathered batch is a sample of the dataset with its label
    rows_by_label = dict.fromkeys(range(10), ())
    for data, target in row_bytes(job.dataset):
        rows_by_label[target] = (*rows_by_label[target], data)
    data, target = batches[1]
    assert all(
        row.tobytes() in rows_by_label[int(label)]
        for row, label in zip(data.numpy(), target, strict=True)
    )


def row_bytes(dataset):
    samples = dataset.open()
    for index in range(len(samples)):
        data, target = samples[index]
        yield data.numpy().tobytes(), int(target)


def test_decoding_limit_decodes_into_its_buffers(outputs):
    require_library("simplejpeg"), require_library("cv2")
    job, prepared = compose_and_prepare(outputs, "loader=peers/decode", "batch_size=4", *SMALL)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    assert sizes(batches) == [4, 4, 2]
    expected = {pixels.numpy().tobytes() for pixels, _ in job.dataset.open()}
    assert {image.tobytes() for image in batches[0][0].numpy()} <= expected


def test_jpegs_dataset_equals_photos_apart_from_resizing(outputs):
    require_library("simplejpeg"), require_library("cv2")
    job, _ = compose_and_prepare(outputs, "loader=raw", *SMALL, "dataset.size=[60,80]")
    photos = compose_job("dataset=photos", "dataset.count=10", "dataset.crop=[60,80]")
    photos.dataset.fetch()
    for (pixels, label), (photo, photo_label) in zip(
        job.dataset.open(), photos.dataset.open(), strict=True
    ):
        difference = pixels.permute(2, 0, 1) / 255 - photo
        assert (label, pixels.shape, pixels.dtype) == (photo_label, (60, 80, 3), torch.uint8)
        assert difference.abs().max() <= 2 / 255


def test_to_floats_normalizes_pixels():
    to_floats = compose_job("transform=peers/to_floats").transform
    pixels, labels = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16), torch.arange(2)
    floats, same_labels = to_floats.transform_batch((pixels, labels))
    torch.testing.assert_close(floats, (pixels / 255 - to_floats.mean) / to_floats.std)
    assert same_labels is labels


def test_rows_of_the_peer_experiments_set_their_settings():
    converting = compose_job("experiment=peers_normalized", "loader=peers/fastloop_converting")
    others = compose_job("experiment=peers_normalized", "loader=batch_sampler")
    assert (converting.transform.where, others.transform.where) == ("worker", "device")
    assert compose_job("experiment=peers_jpeg", "loader=peers/raw_workers").loading.num_workers == 2
    assert not compose_job("experiment=peers", "loader=peers/gather").same_data


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("part", ["waits", "memory", "start", "neighbour", "first"])
def test_every_part_of_the_script_measures_its_figures(
    outputs, monkeypatch, forked_processes, part
):
    for module in (run, waits_and_start):
        monkeypatch.setattr(module, "ROWS", replace(workloads.ROWS, count=700))
        mapped = replace(workloads.MAPPED, count=24, batch_size=8)
        monkeypatch.setattr(module, "MAPPED", mapped)
    monkeypatch.setattr(run, "NORMALIZED", replace(run.NORMALIZED, count=700))
    monkeypatch.setattr(waits_and_start, "START_SAMPLES", 10**5)
    monkeypatch.setattr(workloads, "NUM_JPEGS", 64)
    lines = run.PARTS[part](1)
    assert any(line.met is not None for line in lines)
    assert all(line.figure and bool(line.bar) == (line.met is not None) for line in lines)
    assert table(lines).count("\n") == len(lines) + 1
    assert not list(outputs.glob("peers-start*"))


@pytest.mark.heavy
@pytest.mark.slow
def test_integer_loops_are_compared():  # in new interpreters, as by the script
    lines = bare_integers.integers(1, 900)
    assert [line.met is None for line in lines] == [True] * 3 + [False] * 2


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("name", ["B: uint8 to normalized float32", "tokens: windows of 1,024"])
def test_factors_compare_loops_that_deliver_the_same(outputs, compiler, forked_processes, name):
    case = factors.CASES[name]
    tokens, plain = (5000, 0) if case.tokens else (0, 1.4)
    few = replace(case, count=3 * case.batch_size, tokens=tokens, least_plain=plain)
    lines = factors.factors_of(name, few, 1)
    assert sum(line.met is not None for line in lines) == 1 + (plain > 0)
    assert sum(factors.GATHER in line.label for line in lines) == 1
    batches = [next(iter(factors.LOOPS[loop](few))) for loop in ("FastLoader", *case.rivals[:1])]
    leaves = [batch if isinstance(batch, torch.Tensor) else batch[0] for batch in batches]
    assert {(leaf.dtype, leaf.shape) for leaf in leaves} == {(leaves[0].dtype, leaves[0].shape)}


@pytest.mark.heavy
@pytest.mark.slow
def test_growth_compares_the_loader_with_the_bare_gather(forked_processes):
    lines = growth.growth_of(1, workloads.NORMALIZED, {300: 2, 600: 1}, "torch")
    assert [line.met is None for line in lines] == [True] * 6 + [False] * 2


@pytest.mark.heavy
@pytest.mark.slow
def test_larger_than_memory_study_measures_a_file(outputs, forked_processes):
    outputs.mkdir()
    file = larger_than_memory.write_rows(outputs / "larger.npy", 4000)
    try:
        lines = larger_than_memory.measure_file(1, file, 400)
    except OSError as error:
        pytest.skip(f"memory cgroups are not available: {error}")
    assert [line.bar for line in lines][-2:] == ["at least 80 %", "at most 200 MiB"]
    assert table(lines).count("\n") == len(lines) + 1
