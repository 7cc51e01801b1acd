"""loader=fastloop without a store: what loader=raw delivers, made in threads."""

from __future__ import annotations

import threading

import optree
import pytest
import torch
from options import compose_job, options
from pictures import crop, jpeg, tree, write

from fastloop.gate import check_data
from fastloop.image_files import Decoded
from fastloop.job import check_support
from fastloop.loaders import fastloop as module
from fastloop.prepared import prepare
from fastloop.types import BadData, Unsupported

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
        *("transform=normalize", "transform.where=worker"),
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


@pytest.mark.parametrize("overrides", JOBS.values(), ids=JOBS.keys())
def test_batches_are_those_of_raw(prepared_job, overrides):
    small = ("batch_size=7", "placement=recursive", "benchmark=traversal", *overrides)
    job, prepared = prepared_job("loader=fastloop", "loader.store=null", *small)
    raw, _ = prepared_job("loader=raw", *small)
    check_support(job)
    found, wanted = batches(job, prepared), batches(raw, prepared)
    assert optree.tree_structure(found) == optree.tree_structure(wanted)
    for leaf, other in zip(optree.tree_leaves(found), optree.tree_leaves(wanted), strict=True):
        assert leaf.dtype == other.dtype
        assert torch.equal(leaf, other)
    if job.plan(3).transform is None and job.plan(3).collate is None:
        check_data(prepared, job.plan(3), found[0], 0)


@pytest.mark.parametrize("decoder", options("decoder"))
@pytest.mark.parametrize("collate", ["default", "fast"])
def test_images_of_one_size_are_decoded_into_the_batch(prepared_job, monkeypatch, decoder, collate):
    sized = (*PHOTOS, "dataset.size=[24,32]", f"decoder={decoder}", f"collate={collate}")
    job, prepared = prepared_job("loader=fastloop", "loader.store=null", *sized)
    decoding = []
    fill = Decoded.fill
    monkeypatch.setattr(
        Decoded, "fill", lambda *args: (decoding.append(threading.current_thread()), fill(*args))
    )
    (first, *_), _ = batches(job, prepared)
    assert threading.main_thread() not in decoding
    assert decoding
    assert first[0].dtype == (torch.float32 if collate == "default" else torch.uint8)


def test_broken_images_are_left_out_or_named(outputs, tmp_path):
    root = tree(tmp_path / "images")
    write(root, {"cat/broken.jpg": jpeg(crop())[:500]})
    folder = ("dataset=image_folder", f"dataset.root={root}", "dataset.size=[24,32]")
    job = compose_job("loader=fastloop", "loader.store=null", *folder, "collate=skip_broken")
    prepared = prepare(job.dataset, None, tolerant=True)
    found, _ = batches(job, prepared)
    assert sum(len(labels) for _, labels in found) == 6
    check_data(prepared, job.plan(3), found, 0)
    strict = compose_job("loader=fastloop", "loader.store=null", *folder)
    with pytest.raises(BadData, match=r"cat/broken\.jpg: a broken JPEG"):
        batches(strict, prepared)


def test_what_it_can_not_do_is_refused_before_anything_is_prepared():
    for overrides, message in [
        (("num_workers=2",), "num_workers=2: loader=fastloop has no such setting"),
        (("dataset=integers", "collate=fast"), "collate=fast: integers has no uint8 images"),
    ]:
        with pytest.raises(Unsupported, match=message):
            check_support(compose_job("loader=fastloop", "loader.store=null", *overrides))
    job = compose_job("loader=fastloop", "loader.store=null", "loader.in_memory=true")
    with pytest.raises(Unsupported, match="in_memory=true: without a store"):
        module.Fastloop._source(job.loader, None, job.plan(0))


def test_lists_of_samples_are_samples(outputs):
    job = compose_job("loader=fastloop", "loader.store=null", "dataset=digits")
    source, _ = module._samples(_Listed(), job.plan(0))
    assert [source[index] for index in range(len(source))] == [1, 2, 3]


class _Listed:
    def open(self) -> list[int]:
        return [1, 2, 3]
