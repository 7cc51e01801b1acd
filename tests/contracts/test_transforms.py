"""Collates, which form batches of samples, and transforms, which change them before the step."""

from __future__ import annotations

import pytest
import torch
from options import MYDATASET, compose_job, options
from torch.utils.data import default_collate

from fastloop.core.protocols import Collate, Transform
from fastloop.core.spans import now_ns
from fastloop.core.types import Invalid, Unsupported
from fastloop.data.same_data import check_data
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

PHOTOS = ("dataset=photos", "dataset.count=12", "dataset.crop=[40,56]", "batch_size=5")
WHERE = ["worker", "device"]


def batches(job, prepared):
    with job.loader.open(prepared, job.plan(0)) as epochs:
        yield from epochs(0)


@pytest.mark.parametrize("collate", options("collate"))
def test_collate_option_implements_the_protocol(collate):
    assert isinstance(compose_job(f"collate={collate}").collate, Collate)


@pytest.mark.parametrize("settings", [(), ("num_workers=2",)])
@pytest.mark.parametrize("overrides", [PHOTOS, ("dataset=digits", "batch_size=500")])
def test_fast_collate_equals_default_once_finished(prepared_job, overrides, settings):
    plain, prepared = prepared_job(*overrides)
    fast, _ = prepared_job(*overrides, "collate=fast", *settings)
    scale = prepared.dataset.uint8_scale
    raw_batches = list(batches(fast, prepared))
    finished = [fast.collate.finish(batch, scale) for batch in raw_batches]
    for wanted, raw, batch in zip(batches(plain, prepared), raw_batches, finished, strict=True):
        assert raw[0].dtype == torch.uint8
        assert raw[0].shape[1:] == (*wanted[0].shape[2:], wanted[0].shape[1])
        assert torch.equal(wanted[0], batch[0])
        assert torch.equal(wanted[1], batch[1])
    check_data(prepared, fast.plan(0), finished, epoch=0)
    with pytest.raises(Invalid, match="dtypes and shapes"):
        check_data(prepared, fast.plan(0), raw_batches, epoch=0)


def test_fast_collate_needs_uint8_images(prepared_job):
    job, prepared = prepared_job(*MYDATASET, "collate=fast")
    with pytest.raises(Unsupported, match="collate=fast: mydataset has no uint8 images"):
        list(batches(job, prepared))


def test_skip_broken_drops_samples_that_are_none():
    collate = compose_job("collate=skip_broken").collate
    images, labels = collate.collate([None, (torch.ones(2), 7), None, (torch.zeros(2), 8)])
    assert images.tolist() == [[1, 1], [0, 0]]
    assert labels.tolist() == [7, 8]
    assert collate.collate([None, None]) is None


def test_skip_broken_needs_a_loader_of_single_samples():
    with pytest.raises(Unsupported, match="collate=skip_broken: a store has no broken samples"):
        check_support(compose_job("collate=skip_broken", "loader=np_memmap"))


@pytest.mark.parametrize("transform", options("transform"))
def test_transform_option_implements_the_protocol(transform):
    assert isinstance(compose_job(f"transform={transform}").transform, Transform)


def test_transform_none_returns_its_input():
    transform, sample = compose_job("transform=none").transform, (torch.ones(3), 1)
    assert transform.transform_sample(sample) is sample
    assert transform.transform_batch(sample) is sample


def test_normalize_matches_values_computed_by_hand():
    mean, std = "transform.mean=[0.5,0.25,0.0]", "transform.std=[0.5,0.25,2.0]"
    normalize = compose_job("transform=normalize", mean, std).transform
    image = torch.tensor([1.0, 0.5, 1.0]).view(3, 1, 1).expand(3, 2, 2)
    wanted = torch.tensor([1.0, 1.0, 0.5]).view(3, 1, 1).expand(3, 2, 2)
    assert torch.equal(normalize.transform_sample((image, 4))[0], wanted)
    assert normalize.transform_sample((image, 4))[1] == 4
    batch = normalize.transform_batch(default_collate([(image, 4), (image * 0, 5)]))
    assert torch.equal(batch[0][0], wanted)
    assert batch[0][1, :, 0, 0].tolist() == [-1, -1, 0]
    assert batch[1].tolist() == [4, 5]
    assert image[0, 0, 0] == 1  # the input is unchanged


def test_normalize_applies_one_value_to_all_channels():
    normalize = compose_job("transform=normalize").transform
    assert normalize.transform_sample((torch.full((3, 1, 1), 0.75), 0))[0].tolist() == [[[0.5]]] * 3


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("values", ["[]", "[1.0,2.0]"])
@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_rejects_values_for_another_number_of_channels(name, values, channels):
    normalize = compose_job("transform=normalize", f"transform.{name}={values}").transform
    for image in (torch.zeros(channels, 4, 4), torch.zeros(2, channels, 4, 4)):
        with pytest.raises(
            Unsupported, match=rf"^transform.{name}: \d values for {channels} channels;"
        ):
            normalize.transform_batch((image, 0))


def test_augment_rejects_colour_changes_of_two_channels():
    sample = (torch.zeros(2, 4, 4), 0)
    message = r"^transform.colour=0\.2: not possible for images of 2 channels"
    with pytest.raises(Unsupported, match=message):
        augment().transform_sample(sample)
    assert augment("colour=0.0").transform_sample(sample)[0].shape == (2, 4, 4)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_normalize_rejects_unsuitable_samples_in_a_worker_too(prepared_job, workers):
    settings = ("transform=normalize", "placement=recursive", f"num_workers={workers}")
    job, prepared = prepared_job("dataset=integers", "dataset.count=9", *settings)
    with pytest.raises(Unsupported, match=r"^transform=normalize: it takes \(image, label\) samp"):
        list(batches(job, prepared))


def augment(*settings: str) -> Transform:
    return compose_job(
        "transform=augment", *[f"transform.{setting}" for setting in settings]
    ).transform


def noise(count: int) -> torch.Tensor:
    return torch.rand(3, 16, 20, generator=torch.Generator().manual_seed(0)).expand(
        count, -1, -1, -1
    )


def test_augment_keeps_shapes_and_labels_and_is_random():
    torch.manual_seed(0)
    image, transform = noise(1)[0], augment()
    draws = [transform.transform_sample((image, 3)) for _ in range(8)]
    assert {tuple(output.shape) for output, _ in draws} == {(3, 16, 20)}
    assert {(output.dtype, label) for output, label in draws} == {(torch.float32, 3)}
    assert len({output.numpy().tobytes() for output, _ in draws}) > 4
    assert all(0 <= float(output.min()) <= float(output.max()) <= 1 for output, _ in draws)


def test_augment_draws_once_per_batch_and_once_per_sample():
    torch.manual_seed(0)
    transform, labels = augment(), torch.arange(6)
    images, output_labels = transform.transform_batch((noise(6), labels))
    assert torch.equal(output_labels, labels)
    assert torch.equal(images, images[:1].expand_as(images))
    outputs = [transform.transform_sample((image, 0))[0].numpy().tobytes() for image in noise(6)]
    assert len(set(outputs)) > 1


def test_augment_applies_each_change_separately():
    image = noise(1)[0]
    no_changes = ("padding=0", "flip=0.0", "colour=0.0")
    assert torch.equal(augment(*no_changes).transform_sample((image, 0))[0], image)
    flipped = augment(*no_changes, "flip=1.0").transform_sample((image, 0))[0]
    assert torch.equal(flipped, image.flip(2))
    torch.manual_seed(0)
    cropped = [augment(*no_changes, "padding=4").transform_sample((image, 0))[0] for _ in range(9)]
    assert any((crop[:, 0] == 0).all() or (crop[:, -1] == 0).all() for crop in cropped)


@pytest.mark.parametrize("transform", ["normalize", "augment"])
@pytest.mark.parametrize(
    "sample", [{"image": torch.ones(3, 4, 4)}, (torch.ones(3, 4, 4).byte(), 1), (torch.ones(4), 1)]
)
def test_transform_rejects_samples_that_are_no_images(transform, sample):
    with pytest.raises(Unsupported, match=f"transform={transform}: it takes "):
        compose_job(f"transform={transform}").transform.transform_sample(sample)


@pytest.mark.parametrize("where", WHERE)
def test_transform_runs_only_where_configured(prepared_job, where):
    job, prepared = prepared_job(*PHOTOS, "transform=normalize", f"transform.where={where}")
    assert (job.plan(0).transform is None) == (where == "device")
    lowest = min(float(images.min()) for images, _ in batches(job, prepared))
    assert (lowest < 0) == (where == "worker")


@pytest.mark.parametrize("collate", ["default", "fast"])
@pytest.mark.parametrize("where", WHERE)
def test_trial_compares_data_before_random_transforms(prepared_job, where, collate):
    settings = ("epochs=1", "benchmark=traversal", "transform=augment", f"collate={collate}")
    job, prepared = prepared_job(*PHOTOS, *settings, f"transform.where={where}")
    if collate == "fast" and where == "worker":
        with pytest.raises(Unsupported, match=r"see transform\.where=device"):
            run_trial(job, prepared, 0, now_ns())
    else:
        trial = run_trial(job, prepared, 0, now_ns())
        assert trial.benchmarks["traversal"].samples == 12
