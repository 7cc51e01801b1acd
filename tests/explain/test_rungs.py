"""The rungs of jobs, and what stands in for the parts that they leave out."""

from __future__ import annotations

import pickle

import pytest
import torch
from options import MYDATASET
from torch.utils.data import DataLoader

from fastloop.explain.batch_passes import MOST_TIMED, time_batches
from fastloop.explain.loop_rungs import loader_like
from fastloop.explain.ready_data import ReadyBatches, ReadyFiles, ReadySamples
from fastloop.explain.rung_passes import time_rung
from fastloop.explain.rungs import rungs_of

TRAINING = ("benchmark=training", "torch_threads=1", "min_window_s=0", "batch_size=8")
PHOTOS = ("dataset=photos", "dataset.count=24", "dataset.crop=[20,24]")
CROPS = (*PHOTOS, "transform=random_resized_crop", "transform.size=[9,8]")
TRANSFORM = "transform=normalize"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("overrides", "rungs"),
    [
        (("loader=raw", *MYDATASET), "step copy hand-off collate decode"),
        (("loader=np_memmap", *MYDATASET), "step copy hand-off collate read"),
        (("loader=raw", "device_prefetch=1", *MYDATASET), "step copy hand-off collate decode"),
        (("loader=getitems", *MYDATASET), "step copy hand-off read"),
        (("loader=fastloop", *MYDATASET), "step copy read"),
        (("loader=fastloop", "loader.store=null", *PHOTOS), "step copy decode"),
        (("loader=raw", *PHOTOS), "step copy hand-off collate decode read"),
        (
            ("loader=raw", TRANSFORM, "transform.where=worker", *PHOTOS),
            "step copy hand-off collate transform decode read",
        ),
        (
            ("loader=raw", TRANSFORM, "transform.where=device", *PHOTOS),
            "step copy transform hand-off collate decode read",
        ),
        (("loader=raw", "collate=fast", *PHOTOS), "step copy hand-off collate decode read"),
        (("loader=raw", "cache=cold", *PHOTOS), "step copy hand-off collate decode read"),
        (("loader=raw", *CROPS), "step copy hand-off collate decode"),
        (("loader=raw", "cache=cold", *CROPS), "step copy hand-off collate decode read"),
        (("loader=fastloop", "loader.store=null", *CROPS), "step copy decode"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_every_rung_runs_a_whole_epoch(overrides, rungs, prepared_job):
    job, prepared = prepared_job(*TRAINING, "epochs=1", *overrides)
    assert " ".join(rungs_of(job, prepared)) == rungs
    batches = -(-prepared.num_samples // 8)
    for rung in rungs_of(job, prepared):
        times = time_rung(job, prepared, rung, 0)
        assert times.batches == batches
        assert times.seconds > times.later_wait_s * (batches - 1)
    assert 0 < len(time_batches(job, prepared).load_s) <= MOST_TIMED


def test_files_in_memory_are_the_datasets_samples(prepared_job):
    _, prepared = prepared_job(*PHOTOS)
    images = prepared.dataset.open()
    indices = [5, 3]
    data = [images.read_file(index) for index in indices]
    ready = ReadyFiles(images, indices, data)
    assert len(ready) == len(images) == 24
    for index in range(4):
        image, label = images[indices[index % 2]]
        assert torch.equal(ready[index][0], image)
        assert ready[index][1] == label


def test_ready_samples_and_batches_are_repeated():
    assert [ReadySamples("ab", 5)[index] for index in range(5)] == [*"ababa"]
    batches = [(torch.full((4, 2), float(k)), [torch.arange(4)]) for k in range(2)]
    ready = pickle.loads(pickle.dumps(ReadyBatches(batches, 11)))
    assert len(ready) == 11
    for turn, rows in enumerate((4, 4, 3)):
        first, (second,) = ready.__getitems__([*range(rows)])
        assert torch.equal(first, torch.full((rows, 2), float(turn % 2)))
        assert torch.equal(second, torch.arange(rows))


@pytest.mark.parametrize("in_order", [True, False])
def test_a_copied_loader_keeps_the_order_of_its_batches(in_order):
    loader = DataLoader(torch.zeros(4), num_workers=1, in_order=in_order, prefetch_factor=3)
    copied = loader_like(loader, loader.dataset, loader.collate_fn)
    assert (copied.in_order, copied.prefetch_factor) == (in_order, 3)
    assert loader_like(loader, loader.dataset, loader.collate_fn, num_workers=0).num_workers == 0


def test_epochs_may_be_cut(prepared_job):
    job, prepared = prepared_job(*TRAINING, "batches=3", *MYDATASET, "num_workers=1")
    for rung in rungs_of(job, prepared):
        assert time_rung(job, prepared, rung, 0).batches == 3
