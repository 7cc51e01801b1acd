"""Crops of image files: the same for all loaders by seed, epoch and index, and compared as such."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from image_samples import crop, jpeg, photograph, png, write_files
from native_jpeg import needs_jpeg
from options import compose_job, skip_without_library
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastloop.core.optional_libraries import check_libraries
from fastloop.core.seeds import sample_key
from fastloop.core.spans import now_ns
from fastloop.core.types import Invalid, Unsupported
from fastloop.data.cropped_dataset import number_samples, plan_of_indices
from fastloop.data.same_crops import check_crops
from fastloop.data.same_data import check_data
from fastloop.fastloader.columns.crops import draw_cut
from fastloop.trial.device_delivery import loader_opener
from fastloop.trial.shadow import run_shadow
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

COMMON = ("batch_size=5", "benchmark=traversal", "min_window_s=0", "epochs=1")
RANDOM = ("transform=random_resized_crop", "transform.size=[32,40]")
CENTER = ("transform=center_crop", "transform.size=[32,40]", "transform.resize=44")
TRANSFORMS = {"random": RANDOM, "center": CENTER}
FASTLOOP = ("loader=fastloop", "loader.store=null")
LOADERS = {
    "raw": ("loader=raw",),
    "raw, torchvision": ("loader=raw", "decoder=torchvision"),
    "raw, two workers": ("loader=raw", "num_workers=2", "persistent_workers=true"),
    "fastloop": FASTLOOP,
    "fastloop, no thread": (*FASTLOOP, "loader.num_threads=0"),
    "fastloop, torchvision": (*FASTLOOP, "decoder=torchvision"),
    "spdl": ("loader=spdl", "loader.store=null"),
    "grain": ("loader=grain", "loader.store=null"),
}
"""Loaders that read the images themselves."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An image folder of files that differ in size and kind; outputs are beside it."""
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(tmp_path / "outputs"))
    boxes = [(9 * k, 5 * k, 200 + 17 * k, 150 + 13 * k) for k in range(12)]
    files = {f"{'ab'[k % 2]}/{k}.jpg": jpeg(photograph().crop(box)) for k, box in enumerate(boxes)}
    files["b/grey.jpg"] = jpeg(crop(61, 83).convert("L"))
    files["b/small.png"] = png(crop(47, 33))
    return write_files(tmp_path / "images", files)


def prepare_job(folder, *overrides: str):
    job = compose_job("dataset=image_folder", f"dataset.root={folder}", *COMMON, *overrides)
    try:
        check_libraries(job.loader)
    except Unsupported as error:
        skip_without_library(error)
        raise
    check_support(job)
    return job, job.data_request.prepare()


def open_epochs(job, prepared, plan):
    return job.loader.open(*number_samples(prepared, plan))


def batches(job, prepared, epoch: int, seed: int = 3) -> list:
    with open_epochs(job, prepared, job.plan(seed)) as epochs:
        return [tuple(leaf.clone() for leaf in batch) for batch in epochs(epoch)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("overrides", LOADERS.values(), ids=LOADERS.keys())
def test_loader_delivers_the_crops_of_each_epoch(folder, overrides, transform):
    job, prepared = prepare_job(folder, *overrides, *transform)
    assert prepared.num_samples == 14
    assert prepared.sample == (("float32", (3, 32, 40)), ("int64", ()))
    delivered = []
    with open_epochs(job, prepared, job.plan(3)) as epochs:
        for epoch in (0, 1):
            delivered.append([tuple(batch) for batch in epochs(epoch)])
    for epoch in (0, 1):
        check_crops(prepared, job.plan(3), delivered[epoch], epoch)
    if transform is RANDOM:
        with pytest.raises(Invalid, match=r"place .* of epoch 1: "):
            check_crops(prepared, job.plan(3), delivered[0], 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("order", ["sequential", "blocks"])
@pytest.mark.parametrize("overrides", LOADERS.values(), ids=LOADERS.keys())
def test_crops_are_of_the_epoch_that_is_asked_for_in_any_order(folder, overrides, order):
    job, prepared = prepare_job(folder, *overrides, *RANDOM, f"order={order}")
    with open_epochs(job, prepared, job.plan(3)) as epochs:
        for epoch in (3, 1):
            check_crops(prepared, job.plan(3), epochs(epoch), epoch)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("by", ["thread", "process"])
@pytest.mark.parametrize("overrides", LOADERS.values(), ids=LOADERS.keys())
def test_crops_are_prefetched(folder, overrides, by):
    ahead = ("device_prefetch=2", f"device_prefetch_by={by}")
    job, prepared = prepare_job(folder, *overrides, *RANDOM, *ahead)
    plan = job.plan(3)
    with loader_opener(job, prepared, plan, torch.device("cpu"))() as epochs:
        for epoch in (2, 0):
            check_crops(prepared, plan, epochs(epoch), epoch)


def by_torchvision(path, job, key: int) -> torch.Tensor:
    image = v2.functional.pil_to_tensor(Image.open(path).convert("RGB"))
    cropping = job.dataset.cropping
    cut = draw_cut(cropping.crop, cropping.flip, key, *image.shape[-2:])
    box = cut.rows.start, cut.columns.start, cut.rows.length, cut.columns.length
    image = functional.resized_crop(image, *box, [32, 40], antialias=True)
    if cut.is_flipped:
        image = functional.horizontal_flip(image)
    return functional.normalize(image / 255, [*cropping.mean], [*cropping.std])


def test_crops_are_those_of_torchvision_for_what_seed_epoch_and_index_draw(folder):
    job, prepared = prepare_job(folder, "loader=raw", "order=sequential", *RANDOM)
    paths = [job.dataset.open().images.path(index) for index in range(14)]
    for epoch in (0, 2):
        images = torch.cat([batch[0] for batch in batches(job, prepared, epoch)])
        for index, path in enumerate(paths):
            wanted = by_torchvision(path, job, sample_key(3, epoch, index))
            torch.testing.assert_close(images[index], wanted, rtol=0, atol=1e-6)


def test_center_crops_are_those_of_torchvision(folder):
    job, prepared = prepare_job(folder, "loader=raw", "order=sequential", *CENTER)
    cropping = job.dataset.cropping
    compose = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(44, antialias=True),
            v2.CenterCrop((32, 40)),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([*cropping.mean], [*cropping.std]),
        ]
    )
    images = torch.cat([batch[0] for batch in batches(job, prepared, 0)])
    for index in range(14):
        path = job.dataset.open().images.path(index)
        wanted = compose(Image.open(path).convert("RGB"))
        torch.testing.assert_close(images[index], wanted, rtol=0, atol=1e-6)


@needs_jpeg
def test_fastloop_makes_crops_natively_where_the_decoder_has_the_same_pixels(folder):
    for decoder, name in [("pil", "Images"), ("torchvision", "CropColumn")]:
        job, prepared = prepare_job(folder, *FASTLOOP, *RANDOM, f"decoder={decoder}")
        (images, labels), _ = job.loader._source(prepared, job.plan(0))
        assert type(images).__name__ == name
        assert labels.tolist() == [0] * 6 + [1] * 8


@pytest.mark.parametrize("loader", ["np_memmap", "index_loop", "fastloop"])
def test_store_keeps_center_crops(folder, loader):
    job, prepared = prepare_job(folder, f"loader={loader}", *CENTER)
    delivered = batches(job, prepared, 1)
    check_data(prepared, job.plan(3), delivered, 1)
    check_crops(prepared, job.plan(3), delivered, 1)


def changed(batch, **leaves):
    image, label = batch
    return leaves.get("image", image), leaves.get("label", label)


DISHONEST = {
    "other pixels": lambda b: [changed(b[0], image=b[0][0] + 3 / 255 / 0.224), *b[1:]],
    "flipped": lambda b: [changed(each, image=each[0].flip(3)) for each in b],
    "not a number": lambda b: [changed(b[0], image=b[0][0] * np.nan), *b[1:]],
    "other labels": lambda b: [changed(b[0], label=1 - b[0][1]), *b[1:]],
    "other order": lambda b: [b[1], b[0], *b[2:]],
    "a batch less": lambda b: b[:-1],
    "a batch more": lambda b: [*b, b[0]],
    "nothing": lambda b: [],
    "bytes": lambda b: [changed(each, image=each[0].byte()) for each in b],
    "no labels": lambda b: [(image,) for image, _ in b],
}


@pytest.mark.parametrize("change", DISHONEST.values(), ids=DISHONEST.keys())
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_other_samples_than_the_crops_are_invalid(folder, change, transform):
    job, prepared = prepare_job(folder, "loader=raw", *transform)
    delivered = batches(job, prepared, 1)
    check_crops(prepared, job.plan(3), delivered, 1)
    with pytest.raises(Invalid):
        check_crops(prepared, job.plan(3), change(delivered), 1)


def test_a_buffer_that_is_used_again_is_invalid(folder):
    job, prepared = prepare_job(folder, "loader=raw", "batch_size=1", *RANDOM)
    memory = torch.empty(1, 3, 32, 40)
    reused = ((memory.copy_(image), label) for image, label in batches(job, prepared, 0))
    with pytest.raises(Invalid, match="a batch changes after it was delivered"):
        check_crops(prepared, job.plan(3), reused, 0)


@pytest.mark.parametrize(
    "overrides", [LOADERS["raw"], LOADERS["fastloop"]], ids=["raw", "fastloop"]
)
def test_trial_and_shadow_compare_the_crops_of_the_loader_that_is_timed(folder, overrides):
    job, prepared = prepare_job(folder, *overrides, *RANDOM, "epochs=2")
    trial = run_trial(job, prepared, 1, now_ns())
    assert trial.benchmarks["traversal"].samples == 28
    shadow = run_shadow(job, prepared, 1, trial.calls)
    assert shadow.shuffling.each_sample_once


def test_a_loader_whose_epochs_repeat_one_draw_is_invalid(folder):
    job, prepared = prepare_job(folder, "loader=raw", *RANDOM)
    stuck = replace(job, loader=_OneDraw(job.loader))
    with pytest.raises(Invalid, match=r"place .* of epoch \d: pixels are up to"):
        run_trial(stuck, prepared, 0, now_ns())


@dataclass(frozen=True)
class _OneDraw:
    """A loader that crops as in the first epoch in every epoch."""

    loader: Any
    store: ClassVar[None] = None
    has_even_shares: ClassVar[bool] = True

    def open(self, prepared, plan):
        return self.loader.open(prepared, plan_of_indices(plan))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("dataset=digits", *RANDOM), r"transform=random_resized_crop: dataset digits has no lab"),
        (("dataset=photos", "dataset.size=[9,9]", *CENTER), r"with dataset.size=\[9, 9\]: the im"),
        (("dataset=photos", "loader=np_memmap", *RANDOM), r"loader=np_memmap reads a store, whic"),
        (("dataset=photos", "loader=ffcv", *RANDOM), r"loader=ffcv reads a store, which repeats"),
        (
            ("dataset=photos", "loader._target_=rank_loaders.load_everything", *RANDOM),
            r"sets its own order",
        ),
        (("dataset=photos", "collate=fast", *RANDOM), r"collate=fast: photos has no uint8 images"),
    ],
)
def test_crops_that_cannot_be_delivered_are_unsupported(overrides, message):
    with pytest.raises(Unsupported, match=message):
        check_support(compose_job(*overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("transform=center_crop", "transform.resize=200"), r"resize=200: allowed are 224 \(size"),
        (
            ("transform=random_resized_crop", "transform.scale=[0.5,2]"),
            r"scale=\(0.5, 2.0\): allow",
        ),
        (("transform=random_resized_crop", "transform.flip=2"), r"transform.flip=2"),
        (("transform=center_crop", "transform.std=[0,1,1]"), r"transform.std.0=0"),
    ],
)
def test_impossible_crops_are_refused_with_the_setting(overrides, message):
    from fastloop.config.messages import ConfigError

    with pytest.raises(ConfigError, match=message):
        compose_job("dataset=photos", *overrides)
