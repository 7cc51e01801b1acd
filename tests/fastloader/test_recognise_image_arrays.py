"""Datasets of torchvision with images in memory are read as rows, and make the same batches."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision import datasets, transforms
from torchvision.transforms import v2

from fastloop import FastLoader
from fastloop.fastloader.columns.image_rows import ImageRows
from fastloop.fastloader.recognise_image_arrays import is_array_dataset, needs_no_pillow
from fastloop.fastloader.recognise_image_folders import log_once

COUNT = 40
TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
PIECES = [
    transforms.ToTensor(),
    transforms.PILToTensor(),
    transforms.ConvertImageDtype(torch.float32),
    transforms.ConvertImageDtype(torch.bfloat16),
    transforms.Normalize((0.1307,), (0.3081,)),
    transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    transforms.RandomHorizontalFlip(1.0),
    v2.RandomCrop((7, 5)),
    v2.ToImage(),
    TO_FLOAT,
    v2.ToDtype(torch.float64),
    v2.ToPureTensor(),
    v2.Normalize((0.2,), (0.7,), inplace=True),
    v2.Pad(2),
    transforms.Resize(8),
    v2.Resize((4, 6)),
    transforms.CenterCrop((5, 9)),
    transforms.Grayscale(3),
]
NORMALIZED = transforms.Compose([transforms.ToTensor(), PIECES[4]])


def dataset_of(kind: type, transform: Any = NORMALIZED, **changes: Any) -> Any:
    """A dataset as it is after its files were read, with random images."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(10, (COUNT,), generator=generator)
    shape = (COUNT, 7, 5) if issubclass(kind, datasets.MNIST) else (COUNT, 7, 5, 3)
    data = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    dataset = kind.__new__(kind)
    attributes = {"data": data, "targets": targets}
    if not issubclass(kind, datasets.MNIST):
        attributes = {"data": data.numpy(), "targets": targets.tolist()}
    dataset.__dict__.update(
        attributes | {"transform": transform, "target_transform": None, "root": "."} | changes
    )
    return dataset


def is_native(loader: FastLoader) -> bool:
    columns = getattr(loader._reading.source, "columns", ())
    return any(isinstance(column, ImageRows) for column in columns)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs) is list
    for first, second in zip(ours, theirs, strict=True):
        assert type(first) is torch.Tensor
        assert (first.dtype, first.shape, first.stride()) == (
            *(second.dtype, second.shape),
            second.stride(),
        )
        assert torch.equal(first, second)


KINDS = [
    datasets.MNIST,
    datasets.FashionMNIST,
    datasets.KMNIST,
    datasets.CIFAR10,
    datasets.CIFAR100,
]
PARTS = {
    "all": lambda data: data,
    "a Subset": lambda data: Subset(data, [5, 3, -1, 0, 3]),
    "a Subset of a Subset": lambda data: Subset(
        Subset(data, np.arange(9)), torch.tensor([8, 2, 4])
    ),
    "a part of random_split": lambda data: random_split(data, [30, 10])[1],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"batch_size": 7, "shuffle": True}])
def test_batches_are_those_of_dataloader(kind, part, settings):
    dataset = part(dataset_of(kind))
    assert is_array_dataset(dataset)
    loader = FastLoader(dataset, **settings)
    assert is_native(loader)
    for _ in range(2):
        epochs = []
        for each in (loader, DataLoader(dataset, **(settings | {"num_workers": 0}))):
            torch.manual_seed(1)
            epochs.append(list(each))
        for ours, theirs in zip(*epochs, strict=True):
            assert_same(ours, theirs)


@given(kind=st.sampled_from(KINDS), order=st.lists(st.sampled_from(PIECES), min_size=1, max_size=5))
@example(kind=datasets.MNIST, order=[v2.ToImage(), TO_FLOAT, PIECES[4], v2.ToPureTensor()])
@example(kind=datasets.CIFAR10, order=[PIECES[0], PIECES[5]])
def test_any_composition_makes_what_torchvision_makes(kind, order):
    dataset = dataset_of(kind, v2.Compose(order) if len(order) != 1 else order[0])
    try:
        theirs = next(iter(DataLoader(dataset, 4)))
    except (TypeError, ValueError, RuntimeError):
        assert not is_native(FastLoader(dataset, 4))
        return
    loader = FastLoader(dataset, 4)
    assert is_native(loader) == is_array_dataset(dataset)
    if is_native(loader):
        assert_same(next(iter(loader)), theirs)


RESHAPED = {
    "as they are": transforms.Resize((7, 5)),
    "larger": transforms.Resize(9),
    "cut": transforms.CenterCrop(4),
    "in colours": transforms.Grayscale(3),
    "grey": v2.Grayscale(1),
    "with a margin": transforms.Pad((1, 2, 3, 4), fill=9),
}


@pytest.mark.parametrize("kind", [datasets.MNIST, datasets.CIFAR10])
@pytest.mark.parametrize("reshaping", RESHAPED.values(), ids=RESHAPED)
def test_images_may_be_reshaped_first(kind, reshaping):
    """GANs of 28 pixels that resize MNIST's images, and those of other sizes."""
    dataset = Subset(dataset_of(kind, moved(reshaping)), range(30))
    loader = FastLoader(dataset, 8, num_workers=2)
    assert is_native(loader)
    for ours, theirs in zip(loader, DataLoader(dataset, 8), strict=True):
        assert_same(ours, theirs)
    # Images that a transform leaves as they are are looked up as if it were absent.
    is_unchanged = getattr(reshaping, "size", None) == (7, 5)
    assert needs_no_pillow(dataset) == is_unchanged


def test_images_that_are_reshaped_after_a_tensor_was_made_are_read_as_written():
    after = transforms.Compose([transforms.ToTensor(), transforms.Resize(4)])
    loader = FastLoader(dataset_of(datasets.MNIST, after), 4)
    assert not is_native(loader)
    assert next(iter(loader))[0].shape == (4, 1, 5, 4)


def test_margins_of_a_crop_are_those_of_the_reshaped_image():
    crop = transforms.RandomCrop((12, 9))
    moves = transforms.Compose([transforms.Resize((12, 9)), crop, transforms.ToTensor()])
    dataset = dataset_of(datasets.MNIST, moves)
    loader = FastLoader(dataset, 8)
    assert is_native(loader)
    assert_same(next(iter(loader)), next(iter(DataLoader(dataset, 8))))


CROPS = [
    transforms.RandomCrop((5, 3), padding=(2, 1)),
    transforms.RandomCrop((6, 7), padding=(1, 0, 2, 3)),
    transforms.RandomCrop(4),
    v2.RandomCrop((7, 6), padding=[1, 2, 3, 0]),
    v2.RandomCrop((7, 5)),
]


def moved(*moves: Any) -> transforms.Compose:
    return transforms.Compose([*moves, transforms.ToTensor(), PIECES[4]])


def patterns(images: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(image.flatten().tolist()) for image in images}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [datasets.MNIST, datasets.CIFAR10])
@pytest.mark.parametrize("crop", CROPS)
def test_random_crops_and_flips_are_those_that_torchvision_can_make(kind, crop):
    """All positions come, and no others, each about as often."""
    flip, count = transforms.RandomHorizontalFlip(0.3), 3000
    # The flip may come first if the margins on the left and on the right are equal.
    is_equal = crop in (CROPS[0], CROPS[2], CROPS[4])
    dataset = dataset_of(kind, moved(flip, crop) if is_equal else moved(crop, flip))
    repeated = Subset(dataset, [3] * count)
    (ours, labels), (theirs, _) = (
        next(iter(make(repeated, count))) for make in (FastLoader, DataLoader)
    )
    assert is_native(FastLoader(repeated, 4))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert {*labels.tolist()} == {int(dataset.targets[3])}
    assert patterns(ours) == patterns(theirs)
    # The mean is that of torchvision's within five standard errors of a difference.
    errors = 5 * (2 / count) ** 0.5 * theirs.std(0) + 1e-6
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= errors).all()


def test_random_moves_depend_on_the_seed_the_epoch_and_the_sample():
    dataset = dataset_of(datasets.CIFAR10, moved(CROPS[0], transforms.RandomHorizontalFlip()))
    loaders = [FastLoader(dataset, size, seed=3, shuffle=False) for size in (8, 5)]
    epochs = [torch.cat([batch[0] for batch in each]) for each in (*loaders, *loaders)]
    assert torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[2], epochs[3])
    assert not torch.equal(epochs[0], epochs[2])
    other = torch.cat([batch[0] for batch in FastLoader(dataset, 8, seed=4, shuffle=False)])
    assert not torch.equal(epochs[0], other)


class Changed(datasets.MNIST):
    """Has samples of its own."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class Named(datasets.MNIST):
    """Has samples as MNIST has."""


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (dataset_of(datasets.MNIST, None), "no transform"),
        (dataset_of(datasets.MNIST, transforms.RandomRotation(9)), "RandomRotation can't be done"),
        (dataset_of(datasets.MNIST, moved(transforms.RandomCrop(4, fill=3))), "zeros"),
        (dataset_of(datasets.MNIST, moved(transforms.RandomCrop(8))), "images of (7, 5)"),
        (dataset_of(datasets.MNIST, moved(transforms.RandomCrop(9, pad_if_needed=True))), "zeros"),
        (dataset_of(datasets.MNIST, moved(CROPS[0], CROPS[0])), "second RandomCrop"),
        (dataset_of(datasets.MNIST, moved(PIECES[6], CROPS[1])), "unequal margins"),
        (
            dataset_of(datasets.MNIST, transforms.Compose([NORMALIZED, CROPS[0]])),
            "RandomCrop after Normalize",
        ),
        (dataset_of(datasets.MNIST, torch.from_numpy), "from_numpy can't be done by a table"),
        (dataset_of(datasets.MNIST, target_transform=float), "target_transform"),
        (dataset_of(datasets.MNIST, data=torch.zeros(COUNT, 7, 5)), "float32"),
        (dataset_of(datasets.MNIST, targets=torch.zeros(COUNT)), "labels are float32"),
        (dataset_of(datasets.MNIST, targets=torch.zeros(3, dtype=torch.int64)), "3 images or"),
        (dataset_of(datasets.CIFAR10, targets=[1.0] * COUNT), "labels are float64"),
        (dataset_of(datasets.CIFAR10, targets=np.zeros(COUNT, np.int32)), "labels are int32"),
        (dataset_of(datasets.CIFAR10, data=np.zeros((COUNT, 7, 5, 4), np.uint8)), "(7, 5, 4)"),
        (dataset_of(datasets.CIFAR10, data=np.array([None] * COUNT)), "object"),
        (Subset(dataset_of(datasets.MNIST), [COUNT]), "Subset"),
        (Subset(dataset_of(datasets.MNIST), [1.0]), "Subset"),  # pyright: ignore
    ],
)
def test_others_are_read_as_they_are_written(dataset, reason, caplog):
    caplog.set_level(logging.INFO, logger="fastloop")
    log_once.cache_clear()
    assert not is_native(FastLoader(dataset, 4))
    assert not is_array_dataset(dataset)
    assert reason in caplog.text


def test_derived_classes_are_read_natively_only_without_samples_of_their_own():
    assert is_native(FastLoader(dataset_of(Named), 4))
    for dataset in (dataset_of(Changed), dataset_of(datasets.QMNIST)):
        assert not is_native(FastLoader(dataset, 4))
        assert not is_array_dataset(dataset)
    for settings in ({"native": False}, {"collate_fn": len}, {"batch_size": None}):
        assert not is_native(FastLoader(dataset_of(datasets.MNIST), **settings))
    assert not is_native(FastLoader(ConcatDataset([dataset_of(datasets.MNIST)]), 4))


@pytest.mark.parametrize("kind", [datasets.MNIST, datasets.CIFAR10])
def test_changes_of_the_dataset_hold_from_the_next_epoch_on(kind):
    dataset = dataset_of(kind)
    loader = FastLoader(dataset, 8)
    list(loader)
    dataset.transform = transforms.PILToTensor()
    dataset.targets[3] = 7
    dataset.data[0] = 9
    for ours, theirs in zip(loader, DataLoader(dataset, 8), strict=True):
        assert_same(ours, theirs)
    dataset.data, dataset.targets = dataset.data[5:], dataset.targets[5:]
    assert_same_epochs(loader, DataLoader(dataset, 8))
    subset = Subset(dataset, [1, 2, 3])
    loader = FastLoader(subset, 2)
    subset.indices = [7, 5, 4, 9, 2]
    assert_same_epochs(loader, DataLoader(subset, 2))
    subset.indices[0] = 1
    assert_same_epochs(loader, DataLoader(subset, 2))
    dataset.transform = transforms.Compose([transforms.Resize(9), transforms.PILToTensor()])
    assert_same_epochs(loader, DataLoader(subset, 2))
    dataset.transform.transforms[0].size = 6
    assert_same_epochs(loader, DataLoader(subset, 2))
    assert is_native(loader)


LATER = {
    "transform": lambda _: transforms.Lambda(lambda _: torch.ones(3)),
    "target_transform": lambda _: lambda target: target + 100,
    "data": lambda dataset: torch.rand(len(dataset), 7, 5),
    "targets": lambda dataset: torch.rand(len(dataset)),
}


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, [3, 1])])
def test_a_change_that_is_not_read_natively_is_read_as_it_is_written(name, wrap, caplog):
    dataset = dataset_of(datasets.MNIST, transforms.ToTensor())
    loader, expected = (kind(wrap(dataset), 8) for kind in (FastLoader, DataLoader))
    list(loader)
    assert is_native(loader)
    log_once.cache_clear()
    setattr(dataset, name, LATER[name](dataset))
    with caplog.at_level(logging.INFO, "fastloop"):
        for _ in range(3):
            assert_same_epochs(loader, expected)
    assert not is_native(loader)
    changed, written = caplog.messages
    assert "was changed after its FastLoader was made, and is opened again" in changed
    assert "MNIST of 40 images is read through its own __getitem__: " in written


def test_a_dataset_that_is_not_changed_is_opened_once():
    for kind in (datasets.MNIST, datasets.CIFAR10):
        loader = FastLoader(Subset(dataset_of(kind), [3, 1, 2]), 2)
        reading = loader._reading
        for _ in range(3):
            list(loader)
        assert loader._reading is reading


def test_a_method_that_a_program_has_replaced_in_torchvision_is_called(monkeypatch):
    dataset = dataset_of(datasets.MNIST)
    loader = FastLoader(dataset, 8)
    monkeypatch.setattr(datasets.MNIST, "__getitem__", lambda _, index: (float(index), index))
    for reading in (loader, FastLoader(dataset, 8)):
        assert_same_epochs(reading, DataLoader(dataset, 8))


def assert_same_epochs(loader: FastLoader, expected: DataLoader) -> None:
    for ours, theirs in zip(loader, expected, strict=True):
        assert_same(ours, theirs)


def test_transforms_with_hooks_or_methods_of_their_own_are_called_for_each_sample():
    hooked, replaced = (transforms.Normalize((0.5,), (0.5,)) for _ in range(2))
    hooked.register_forward_hook(lambda _, inputs, output: output + torch.rand(1))
    replaced.forward = torch.negative  # pyright: ignore
    composed = v2.Compose([v2.ToImage(), TO_FLOAT])
    composed.register_forward_hook(lambda _, inputs, output: output * 0)
    for part in (hooked, replaced, composed):
        dataset = dataset_of(datasets.MNIST, transforms.Compose([transforms.ToTensor(), part]))
        if part is composed:
            dataset.transform = part
        state = torch.get_rng_state()
        assert not is_array_dataset(dataset)
        assert not is_native(FastLoader(dataset, 4))
        assert torch.equal(torch.get_rng_state(), state)


def test_question_of_a_dataset_never_raises():
    class Broken(datasets.MNIST):
        @property
        def data(self) -> Any:
            raise OSError("it is gone")

    dataset = Broken.__new__(Broken)
    dataset.__dict__.update(transform=NORMALIZED, target_transform=None)
    assert not is_array_dataset(dataset)


def test_state_and_copies_go_on_at_the_same_sample():
    dataset = dataset_of(datasets.CIFAR10)
    loader = FastLoader(dataset, 8, shuffle=True, seed=3)
    batches = list(loader)
    again = pickle.loads(pickle.dumps(FastLoader(dataset, 8, shuffle=True, seed=3)))
    assert is_native(again)
    iterator = iter(again)
    next(iterator)
    last = FastLoader(dataset, 8, shuffle=True, seed=3)
    last.load_state_dict(again.state_dict())
    for ours, theirs in zip(last, batches[1:], strict=True):
        assert_same(ours, theirs)
