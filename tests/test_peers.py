"""What experiments/peers.md is measured with: loaders whose threads are others', the machine's
limits as loaders, and the script for what a traversal can't say."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import islice
from shutil import which

import numpy as np
import os_threads
import pytest
import torch
from options import absent, compose_job, library, script
from test_loaders import children, rows, sizes, whole

from fastloop.config import register_experiments
from fastloop.job import check_support
from fastloop.plans import epoch_indices
from fastloop.prepared import prepare

IN_THREADS = ("grain", "spdl")
SMALL = ("dataset=peers/jpegs", "dataset.count=10", "dataset.crop=[60,80]", "dataset.size=[20,30]")


@pytest.fixture(autouse=True)
def experiments():
    register_experiments()


@pytest.fixture
def compiler():
    if which("cc") is None:
        absent("no C compiler")


def composed(outputs, *overrides):
    job = compose_job(*overrides)
    check_support(job)
    return job, prepare(job.dataset, job.loader.store, job.collate.tolerant)


@pytest.mark.parametrize("loader", IN_THREADS)
def test_samples_are_decoded_in_their_threads(outputs, loader):
    library(loader)
    job, prepared = composed(outputs, f"loader=peers/{loader}_decoding", "dataset=digits")
    wanted, plan = rows([whole(job.dataset)]), job.plan(seed=3)
    order = epoch_indices(plan.order, len(wanted), 3, 0).tolist()
    with job.loader.open(prepared, plan) as epochs:
        assert rows(epochs(0)) == [wanted[index] for index in order]


@pytest.mark.parametrize("loader", IN_THREADS)
def test_a_sample_that_cant_be_read_ends_the_epoch_with_its_own_error(outputs, loader):
    library(loader)
    broken = ("loader=" + loader, "loader.store=null", "batch_size=4", "order=sequential")
    job = compose_job(*broken, "dataset._target_=brought.Raises")
    prepared = prepare(compose_job("dataset._target_=brought.Squares").dataset, None, False)
    before = os_threads.counted(), children()
    with job.loader.open(replace(prepared, dataset=job.dataset), job.plan(0)) as epochs:
        batches = iter(epochs(0))
        assert sizes(islice(batches, 4)) == [4] * 4
        with pytest.raises(ValueError, match="boom"):
            next(batches)
    assert os_threads.fell_to(before[0])
    assert children() == before[1]


@pytest.mark.parametrize("ahead", [0, 3])
def test_the_c_code_gathers_rows(outputs, compiler, ahead):
    gather = script("peers_limits").compiled().gather_batches
    source = np.random.default_rng(0).integers(256, size=(50, 7), dtype=np.uint8)
    picks, batch = np.random.default_rng(1).permutation(50)[:33], np.zeros((16, 7), np.uint8)
    gather(source.ctypes.data, batch.ctypes.data, picks.ctypes.data, 32, 16, 7, ahead)
    assert (batch == source[picks[16:32]]).all()
    gather(source.ctypes.data, batch.ctypes.data, picks[32:].ctypes.data, 1, 16, 7, ahead)
    assert (batch[0] == source[picks[32]]).all()
    assert (batch[1:] == source[picks[17:32]]).all()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("row", ["gather", "gather_mapped"])
def test_a_limit_has_the_batches_of_its_workload(outputs, compiler, row, drop_last):
    settings = ("dataset=mydataset", "dataset.count=203", f"drop_last={str(drop_last).lower()}")
    job, prepared = composed(outputs, f"loader=peers/{row}", "batch_size=16", *settings)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    assert sizes(batches) == [16] * 12 + [11] * (not drop_last)
    kinds = {(data.dtype, data.shape[1:], target.dtype) for data, target in batches}
    assert kinds == {(torch.float32, (28, 28), torch.int64)}
    # all of a gathered batch are real rows, and each label is beside its own
    of_label = dict.fromkeys(range(10), ())
    for data, target in whole_rows(job.dataset):
        of_label[target] = (*of_label[target], data)
    data, target = batches[1]
    assert all(
        row.tobytes() in of_label[int(one)] for row, one in zip(data.numpy(), target, strict=True)
    )


def whole_rows(dataset):
    samples = dataset.open()
    for index in range(len(samples)):
        data, target = samples[index]
        yield data.numpy().tobytes(), int(target)


def test_the_limit_of_decoding_decodes_into_its_buffers(outputs):
    library("simplejpeg"), library("cv2")
    job, prepared = composed(outputs, "loader=peers/decode", "batch_size=4", *SMALL)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    assert sizes(batches) == [4, 4, 2]
    wanted = {pixels.numpy().tobytes() for pixels, _ in job.dataset.open()}
    assert {one.tobytes() for one in batches[0][0].numpy()} <= wanted


def test_jpegs_are_the_photos_but_for_the_resize(outputs):
    library("simplejpeg"), library("cv2")
    job, _ = composed(outputs, "loader=raw", *SMALL, "dataset.size=[60,80]")
    theirs = compose_job("dataset=photos", "dataset.count=10", "dataset.crop=[60,80]")
    theirs.dataset.fetch()
    for (ours, label), (floats, same) in zip(
        job.dataset.open(), theirs.dataset.open(), strict=True
    ):
        found = ours.permute(2, 0, 1) / 255 - floats
        assert (label, ours.shape, ours.dtype) == (same, (60, 80, 3), torch.uint8)
        assert found.abs().max() <= 2 / 255


def test_floats_are_normalized():
    to_floats = compose_job("transform=peers/to_floats").transform
    pixels, labels = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16), torch.arange(2)
    floats, same = to_floats.of_a_batch((pixels, labels))
    torch.testing.assert_close(floats, (pixels / 255 - to_floats.mean) / to_floats.std)
    assert same is labels


def test_a_row_of_an_experiment_brings_its_settings():
    converting = compose_job("experiment=peers_b", "loader=peers/fastloop_converting")
    others = compose_job("experiment=peers_b", "loader=batch_sampler")
    assert (converting.transform.where, others.transform.where) == ("worker", "device")
    assert compose_job("experiment=peers_c", "loader=peers/raw_workers").num_workers == 2
    assert not compose_job("experiment=peers", "loader=peers/gather").same_data


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is told by /proc")
@pytest.mark.parametrize("part", ["waits", "memory", "start", "neighbour", "first"])
def test_every_part_of_the_script_gives_its_figures(outputs, monkeypatch, part):
    peers = script("peers")
    monkeypatch.setattr(peers, "OUTPUTS", outputs)
    monkeypatch.setattr(peers, "A", replace(peers.A, count=700))
    monkeypatch.setattr(peers, "B", replace(peers.B, count=700))
    monkeypatch.setattr(peers, "D", replace(peers.D, count=24, batch_size=8))
    monkeypatch.setattr(peers, "STARTED", 10**5)
    lines = peers.PARTS[part](1)
    assert any(line.met is not None for line in lines)
    assert all(line.figure and bool(line.bar) == (line.met is not None) for line in lines)
    assert peers.table(lines).count("\n") == len(lines) + 1
    assert not list(outputs.glob("peers-start*"))


@pytest.mark.slow
def test_loops_over_integers_are_compared():
    lines = script("peers_integers").integers(1, 900)
    assert [line.met is None for line in lines] == [True] * 3 + [False] * 2


@pytest.mark.slow
def test_growth_is_that_of_the_loader_and_of_the_gather_alone():
    peers = script("peers")
    lines = script("peers_growth").growth(1, peers.B, {300: 2, 600: 1}, "torch")
    assert [line.bar for line in lines] == ["", "", "within 15 %", "", "", ""]
    assert lines[2].met is not None


@pytest.mark.slow
def test_a_file_larger_than_memory_is_measured(outputs):
    larger = script("larger_than_memory")
    file = larger.written(outputs / "larger.npy", 4000)
    try:
        lines = larger.larger(1, file, 400)
    except OSError as why:
        pytest.skip(f"no memory cgroup can be made here: {why}")
    assert [line.bar for line in lines][-2:] == ["at least 80 %", "at most 200 MiB"]
    assert larger.table(lines).count("\n") == len(lines) + 1
