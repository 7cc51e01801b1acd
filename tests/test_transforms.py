"""What collates make of samples, and what transforms make of them before the step."""

from __future__ import annotations

import pytest
import torch
from options import MYDATASET, compose_job, options
from torch.utils.data import default_collate

from fastloop.gate import check_data
from fastloop.job import check_support
from fastloop.protocols import Collate, Transform
from fastloop.spans import now_ns
from fastloop.trial import run_trial
from fastloop.types import Invalid, Unsupported

PHOTOS = ("dataset=photos", "dataset.count=12", "dataset.crop=[40,56]", "batch_size=5")
WHERE = ["worker", "device"]


def batches(job, prepared):
    with job.loader.open(prepared, job.plan(0)) as epochs:
        yield from epochs(0)


@pytest.mark.parametrize("collate", options("collate"))
def test_every_collate_is_one(collate):
    assert isinstance(compose_job(f"collate={collate}").collate, Collate)


@pytest.mark.parametrize("settings", [(), ("num_workers=2",)])
@pytest.mark.parametrize("data", [PHOTOS, ("dataset=digits", "batch_size=500")])
def test_fast_becomes_what_default_gives(prepared_job, data, settings):
    plain, prepared = prepared_job(*data)
    fast, _ = prepared_job(*data, "collate=fast", *settings)
    scale = prepared.dataset.uint8_scale
    travelled = list(batches(fast, prepared))
    finished = [fast.collate.finish(batch, scale) for batch in travelled]
    for wanted, raw, got in zip(batches(plain, prepared), travelled, finished, strict=True):
        assert raw[0].dtype == torch.uint8
        assert raw[0].shape[1:] == (*wanted[0].shape[2:], wanted[0].shape[1])
        assert torch.equal(wanted[0], got[0])
        assert torch.equal(wanted[1], got[1])
    check_data(prepared, fast.plan(0), finished, epoch=0)
    with pytest.raises(Invalid, match="dtypes and shapes"):
        check_data(prepared, fast.plan(0), travelled, epoch=0)


def test_fast_is_unsupported_without_bytes(prepared_job):
    job, prepared = prepared_job(*MYDATASET, "collate=fast")
    with pytest.raises(Unsupported, match="collate=fast: mydataset has no uint8 images"):
        list(batches(job, prepared))


def test_skip_broken_leaves_out_what_is_none():
    collate = compose_job("collate=skip_broken").collate
    images, labels = collate.collate([None, (torch.ones(2), 7), None, (torch.zeros(2), 8)])
    assert images.tolist() == [[1, 1], [0, 0]]
    assert labels.tolist() == [7, 8]
    assert collate.collate([None, None]) is None


def test_skip_broken_needs_single_samples():
    with pytest.raises(Unsupported, match="collate=skip_broken: a store holds whole samples"):
        check_support(compose_job("collate=skip_broken", "loader=np_memmap"))


@pytest.mark.parametrize("transform", options("transform"))
def test_every_transform_is_one(transform):
    assert isinstance(compose_job(f"transform={transform}").transform, Transform)


def test_nothing_is_nothing():
    nothing, sample = compose_job("transform=none").transform, (torch.ones(3), 1)
    assert nothing.of_a_sample(sample) is sample
    assert nothing.of_a_batch(sample) is sample


def test_normalize_by_hand():
    mean, std = "transform.mean=[0.5,0.25,0.0]", "transform.std=[0.5,0.25,2.0]"
    normalize = compose_job("transform=normalize", mean, std).transform
    image = torch.tensor([1.0, 0.5, 1.0]).view(3, 1, 1).expand(3, 2, 2)
    wanted = torch.tensor([1.0, 1.0, 0.5]).view(3, 1, 1).expand(3, 2, 2)
    assert torch.equal(normalize.of_a_sample((image, 4))[0], wanted)
    assert normalize.of_a_sample((image, 4))[1] == 4
    batch = normalize.of_a_batch(default_collate([(image, 4), (image * 0, 5)]))
    assert torch.equal(batch[0][0], wanted)
    assert batch[0][1, :, 0, 0].tolist() == [-1, -1, 0]
    assert batch[1].tolist() == [4, 5]
    assert image[0, 0, 0] == 1  # what came in is left as it was


def test_normalize_takes_one_figure_for_all_channels():
    normalize = compose_job("transform=normalize").transform
    assert normalize.of_a_sample((torch.full((3, 1, 1), 0.75), 0))[0].tolist() == [[[0.5]]] * 3


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("figures", ["[]", "[1.0,2.0]"])
@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_never_makes_other_channels(name, figures, channels):
    normalize = compose_job("transform=normalize", f"transform.{name}={figures}").transform
    for image in (torch.zeros(channels, 4, 4), torch.zeros(2, channels, 4, 4)):
        with pytest.raises(
            Unsupported, match=rf"^transform.{name}: \d figures, channels: {channels};"
        ):
            normalize.of_a_batch((image, 0))


def test_augment_says_that_two_channels_have_no_colours():
    sample = (torch.zeros(2, 4, 4), 0)
    with pytest.raises(Unsupported, match=r"^transform.colour=0\.2: images of 2 channels"):
        augment().of_a_sample(sample)
    assert augment("colour=0.0").of_a_sample(sample)[0].shape == (2, 4, 4)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_it_does_not_take_are_unsupported_in_a_worker_too(prepared_job, workers):
    settings = ("transform=normalize", "placement=recursive", f"num_workers={workers}")
    job, prepared = prepared_job("dataset=integers", "dataset.count=9", *settings)
    with pytest.raises(Unsupported, match=r"^transform=normalize: it takes \(image, label\) samp"):
        list(batches(job, prepared))


def augment(*settings: str) -> Transform:
    return compose_job("transform=augment", *[f"transform.{one}" for one in settings]).transform


def noise(count: int) -> torch.Tensor:
    return torch.rand(3, 16, 20, generator=torch.Generator().manual_seed(0)).expand(
        count, -1, -1, -1
    )


def test_augment_keeps_shapes_and_labels_and_is_random():
    torch.manual_seed(0)
    image, one = noise(1)[0], augment()
    draws = [one.of_a_sample((image, 3)) for _ in range(8)]
    assert {tuple(got.shape) for got, _ in draws} == {(3, 16, 20)}
    assert {(got.dtype, label) for got, label in draws} == {(torch.float32, 3)}
    assert len({got.numpy().tobytes() for got, _ in draws}) > 4
    assert all(0 <= float(got.min()) <= float(got.max()) <= 1 for got, _ in draws)


def test_a_batch_on_the_device_has_one_draw_and_samples_have_one_each():
    torch.manual_seed(0)
    one, labels = augment(), torch.arange(6)
    images, kept = one.of_a_batch((noise(6), labels))
    assert torch.equal(kept, labels)
    assert torch.equal(images, images[:1].expand_as(images))
    each = [one.of_a_sample((image, 0))[0].numpy().tobytes() for image in noise(6)]
    assert len(set(each)) > 1


def test_each_change_by_itself():
    image = noise(1)[0]
    still = ("padding=0", "flip=0.0", "colour=0.0")
    assert torch.equal(augment(*still).of_a_sample((image, 0))[0], image)
    flipped = augment(*still, "flip=1.0").of_a_sample((image, 0))[0]
    assert torch.equal(flipped, image.flip(2))
    torch.manual_seed(0)
    cropped = [augment(*still, "padding=4").of_a_sample((image, 0))[0] for _ in range(9)]
    assert any((got[:, 0] == 0).all() or (got[:, -1] == 0).all() for got in cropped)


@pytest.mark.parametrize("transform", ["normalize", "augment"])
@pytest.mark.parametrize(
    "sample", [{"image": torch.ones(3, 4, 4)}, (torch.ones(3, 4, 4).byte(), 1), (torch.ones(4), 1)]
)
def test_what_is_no_image_is_unsupported(transform, sample):
    with pytest.raises(Unsupported, match=f"transform={transform}: it takes "):
        compose_job(f"transform={transform}").transform.of_a_sample(sample)


@pytest.mark.parametrize("where", WHERE)
def test_a_transform_is_done_in_one_place(prepared_job, where):
    job, prepared = prepared_job(*PHOTOS, "transform=normalize", f"transform.where={where}")
    assert (job.plan(0).transform is None) == (where == "device")
    lowest = min(float(images.min()) for images, _ in batches(job, prepared))
    assert (lowest < 0) == (where == "worker")


@pytest.mark.parametrize("collate", ["default", "fast"])
@pytest.mark.parametrize("where", WHERE)
def test_a_trial_compares_before_random_transforms(prepared_job, where, collate):
    settings = ("epochs=1", "benchmark=traversal", "transform=augment", f"collate={collate}")
    job, prepared = prepared_job(*PHOTOS, *settings, f"transform.where={where}")
    if collate == "fast" and where == "worker":
        with pytest.raises(Unsupported, match=r"see transform\.where=device"):
            run_trial(job, prepared, 0, now_ns())
    else:
        trial = run_trial(job, prepared, 0, now_ns())
        assert trial.benchmarks["traversal"].samples == 12
