"""loader=fastloop without a store: the batches of loader=raw, made in threads."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import optree
import pytest
import torch
from image_samples import crop, jpeg, write_class_folders, write_files
from my_code import NotedSquares
from options import compose_job, options

from fastloop.core.types import BadData, Unsupported
from fastloop.data.image_file_column import ImageFileColumn
from fastloop.data.prepare_dataset import prepare
from fastloop.data.same_data import check_data
from fastloop.options.loader import fastloop as module
from fastloop.trial.support import check_support

PHOTOS = ("dataset=photos", "dataset.count=30", "dataset.crop=[40,60]")
JOBS = {
    "digits": ("dataset=digits",),
    "digits, normalized": ("dataset=digits", "transform=normalize", "transform.where=worker"),
    "digits, uint8": ("dataset=digits", "collate=fast"),
    "photos": PHOTOS,
    "photos, one size": (*PHOTOS, "dataset.size=[24,32]"),
    "photos, uint8": (*PHOTOS, "dataset.size=[24,32]", "collate=fast"),
    "photos, normalized": (
        *(*PHOTOS, "dataset.size=[24,32]"),
        "transform=normalize",
        "transform.where=worker",
    ),
    "nested": ("dataset=nested", "dataset.count=20"),
    "tokens": ("dataset=tokens", "dataset.num_tokens=5000"),
    "texts": ("dataset=texts", "dataset.count=40", "collate=pad"),
    "integers": ("dataset=integers", "dataset.count=100"),
    "in blocks": ("dataset=digits", "order=blocks", "drop_last=true"),
}


def batches(job, prepared) -> list:
    with job.loader.open(prepared, job.plan(3)) as epochs:
        return [list(epochs(epoch)) for epoch in (0, 1)]


@pytest.mark.heavy
@pytest.mark.parametrize("overrides", JOBS.values(), ids=JOBS.keys())
def test_fastloop_loader_delivers_the_batches_of_raw(prepared_job, overrides):
    common = ("batch_size=7", "placement=recursive", "benchmark=traversal", *overrides)
    job, prepared = prepared_job("loader=fastloop", "loader.store=null", *common)
    raw, _ = prepared_job("loader=raw", *common)
    check_support(job)
    delivered, expected = batches(job, prepared), batches(raw, prepared)
    assert optree.tree_structure(delivered) == optree.tree_structure(expected)
    for leaf, other in zip(
        optree.tree_leaves(delivered), optree.tree_leaves(expected), strict=True
    ):
        assert leaf.dtype == other.dtype
        assert torch.equal(leaf, other)
    if job.plan(3).transform is None and job.plan(3).collate is None:
        check_data(prepared, job.plan(3), delivered[0], 0)


@pytest.mark.parametrize("decoder", options("decoder"))
@pytest.mark.parametrize("collate", ["default", "fast"])
def test_fastloop_loader_decodes_images_in_threads(prepared_job, monkeypatch, decoder, collate):
    overrides = (*PHOTOS, "dataset.size=[24,32]", f"decoder={decoder}", f"collate={collate}")
    job, prepared = prepared_job("loader=fastloop", "loader.store=null", *overrides)
    decoding_threads = []
    fill = ImageFileColumn.fill
    monkeypatch.setattr(
        ImageFileColumn,
        "fill",
        lambda *args: (decoding_threads.append(threading.current_thread()), fill(*args)),
    )
    (first, *_), _ = batches(job, prepared)
    assert threading.main_thread() not in decoding_threads
    assert decoding_threads
    assert first[0].dtype == (torch.float32 if collate == "default" else torch.uint8)


def test_fastloop_loader_skips_or_reports_broken_images(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    write_files(root, {"cat/broken.jpg": jpeg(crop())[:500]})
    folder = ("dataset=image_folder", f"dataset.root={root}", "dataset.size=[24,32]")
    job = compose_job("loader=fastloop", "loader.store=null", *folder, "collate=skip_broken")
    prepared = prepare(job.dataset, None, tolerant=True)
    delivered, _ = batches(job, prepared)
    assert sum(len(labels) for _, labels in delivered) == 6
    check_data(prepared, job.plan(3), delivered, 0)
    strict = compose_job("loader=fastloop", "loader.store=null", *folder)
    with pytest.raises(BadData, match=r"cat/broken\.jpg: a broken JPEG"):
        batches(strict, prepared)


def test_fastloop_loader_rejects_unsupported_settings_early():
    for overrides, message in [
        (("num_workers=2",), "num_workers=2: loader=fastloop has no such setting"),
        (("dataset=integers", "collate=fast"), "collate=fast: integers has no uint8 images"),
    ]:
        with pytest.raises(Unsupported, match=message):
            check_support(compose_job("loader=fastloop", "loader.store=null", *overrides))
    job = compose_job("loader=fastloop", "loader.store=null", "loader.in_memory=true")
    with pytest.raises(Unsupported, match="in_memory=true: without a store"):
        module.FastloopLoader._source(job.loader, None, job.plan(0))


@pytest.mark.parametrize("ahead", [1, 4])
def test_as_many_batches_are_read_ahead_as_the_setting_says(prepared_job, ahead):
    job, prepared = prepared_job(
        "dataset._target_=my_code.NotedSquares",
        *("loader=fastloop", "loader.store=null", "loader.num_threads=1", f"loader.ahead={ahead}"),
        *("batch_size=2", "benchmark=traversal"),
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        NotedSquares.noted.clear()
        running = iter(epochs(0))
        for _ in range(2):
            next(running)
        while len(NotedSquares.noted) < 2 * (2 + ahead):
            time.sleep(0.01)
        time.sleep(0.2)  # a thread that reads more has the time for it
        assert len(NotedSquares.noted) == 2 * (2 + ahead)


def test_fastloop_loader_accepts_a_list_as_dataset(outputs):
    job = compose_job("loader=fastloop", "loader.store=null", "dataset=digits")
    prepared = replace(prepare(job.dataset, None), dataset=_ListDataset())
    source, _ = module._samples(prepared, job.plan(0))
    assert [source[index] for index in range(len(source))] == [1, 2, 3]


class _ListDataset:
    def open(self) -> list[int]:
        return [1, 2, 3]
