"""Image folders of torchvision read natively: what a program sees is what DataLoader delivers."""

from __future__ import annotations

import io
import logging
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from image_samples import BROKEN, IMAGES, jpeg, photograph, png, write_files
from native_jpeg import needs_jpeg
from PIL import Image, ImageFile
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    random_split,
)
from torchvision import datasets, transforms
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

from fastloop import FastLoader
from fastloop.fastloader import recognise_image_folders
from fastloop.fastloader.recognise_image_folders import FolderImages

pytestmark = needs_jpeg
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = transforms.Normalize(MEAN, STD)
FLOAT = v2.ToDtype(torch.float32, scale=True)
CENTER = [transforms.Resize(72), transforms.CenterCrop(64)]
VALIDATION = {
    "version 1": transforms.Compose([*CENTER, transforms.ToTensor(), NORMALIZE]),
    "version 1, not normalized": transforms.Compose([*CENTER, transforms.ToTensor()]),
    "version 1, whole numbers": transforms.Compose([*CENTER, transforms.PILToTensor()]),
    "version 1, converted": transforms.Compose(
        [*CENTER, transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float32), NORMALIZE]
    ),
    "version 1, nested": transforms.Compose(
        [transforms.Compose(CENTER), transforms.Compose([transforms.ToTensor(), NORMALIZE])]
    ),
    "version 2": v2.Compose(
        [v2.Resize(72), v2.CenterCrop((64, 48)), v2.ToImage(), FLOAT, v2.Normalize(MEAN, STD)]
    ),
    "version 2, a tensor first": v2.Compose(
        [v2.ToImage(), v2.Resize(72), v2.CenterCrop(64), FLOAT, v2.ToPureTensor()]
    ),
    "version 2, whole numbers": v2.Compose([v2.Resize([72]), v2.CenterCrop(64), v2.PILToTensor()]),
    "the transforms of weights": ResNet18_Weights.DEFAULT.transforms(crop_size=64, resize_size=72),
}
CROP = transforms.RandomResizedCrop(32)
FLIP = transforms.RandomHorizontalFlip()
TRAINING = transforms.Compose([CROP, FLIP, transforms.ToTensor(), NORMALIZE])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of 12 photographs that differ in size, of three classes; some are no plain JPEG."""
    files = {
        f"{'abc'[n % 3]}/{n:02}.jpg": jpeg(
            photograph().crop((9 * n, 0, 150 + 20 * n, 320 - 11 * n))
        )
        for n in range(8)
    }
    files["a/grey.jpeg"] = jpeg(photograph().convert("L").resize((90, 120)))
    files["b/cmyk.JPG"] = jpeg(photograph().convert("CMYK").resize((111, 80)))
    files["b/turned.jpg"] = IMAGES["JPEG with EXIF orientation"]
    files["c/picture.png"] = png(photograph().resize((100, 80)))
    return write_files(tmp_path_factory.mktemp("folder"), files)


def folder(root, transform=TRAINING, **settings) -> datasets.ImageFolder:
    return datasets.ImageFolder(root, transform, **settings)


def is_native(loader: FastLoader) -> bool:
    columns = getattr(loader._reading.source, "columns", ())
    return any(isinstance(column, FolderImages) for column in columns)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def assert_same_images(images: torch.Tensor, expected: torch.Tensor, std: float = min(STD)) -> None:
    """Within 2 of 255 before normalization, most of them within 1."""
    assert (images.dtype, images.shape) == (expected.dtype, expected.shape)
    step = 1.0 if images.dtype == torch.uint8 else 1 / 255 / std
    differences = (images.double() - expected.double()).abs() / step
    assert differences.max() < 2.01
    assert (differences > 1.01).double().mean() < 0.001


@pytest.mark.parametrize("transform", VALIDATION.values(), ids=VALIDATION)
def test_validation_batches_are_those_of_dataloader(root, transform):
    dataset = folder(root, transform)
    loader = FastLoader(dataset, 5)
    assert is_native(loader)
    for ours, theirs in zip(loader, DataLoader(dataset, 5), strict=True):
        assert (type(ours), len(ours)) == (type(theirs), len(theirs))
        assert ours[0].is_contiguous()
        std = min(STD) if ours[0].min() < 0 else 1.0
        assert_same_images(ours[0], theirs[0], std)
        assert ours[1].dtype == theirs[1].dtype == torch.int64
        assert torch.equal(ours[1], theirs[1])


WAYS = {
    "one sample a batch": lambda _: {},
    "shuffled": lambda data: {"sampler": RandomSampler(data, generator=seeded()), "batch_size": 5},
    "without the last": lambda _: {"batch_size": 5, "drop_last": True},
    "a sampler": lambda _: {"sampler": [3, 1, 11], "batch_size": 2},
    "a DistributedSampler": lambda data: {
        "sampler": DistributedSampler(data, 2, 1),
        "batch_size": 2,
    },
    "a batch sampler": lambda data: {"batch_sampler": BatchSampler(range(len(data)), 5, False)},
    "threads": lambda _: {"batch_size": 4, "num_workers": 2},
}
PARTS = {
    "a folder": lambda data: data,
    "a Subset": lambda data: Subset(data, [5, 3, -1, 0, 3]),
    "a Subset of a Subset": lambda data: Subset(
        Subset(data, np.arange(9)), torch.tensor([8, 2, 4])
    ),
    "a part of random_split": lambda data: random_split(data, [7, 5], seeded())[1],
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_batches_are_ordered_as_by_dataloader(root, settings):
    dataset = folder(root, VALIDATION["version 1"])
    loader = FastLoader(dataset, **settings(dataset))
    assert is_native(loader)
    expected = [labels.tolist() for _, labels in _dataloader(dataset, settings)]
    assert [labels.tolist() for _, labels in loader] == expected
    assert len(loader) == len(expected)


def _dataloader(dataset, settings) -> DataLoader:
    return DataLoader(dataset, **{k: v for k, v in settings(dataset).items() if k != "num_workers"})


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_parts_of_a_folder_have_their_own_samples(root, part):
    dataset = part(folder(root, VALIDATION["version 1"]))
    loader = FastLoader(dataset, 2)
    assert is_native(loader)
    assert len(loader.dataset) == len(dataset)
    for ours, theirs in zip(loader, DataLoader(dataset, 2), strict=True):
        assert_same_images(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def epochs(loader: FastLoader, count: int = 1) -> list[list]:
    return [batch for _ in range(count) for batch in loader]


def assert_equal_batches(batches, others) -> None:
    for mine, other in zip(batches, others, strict=True):
        assert all(torch.equal(leaf, its) for leaf, its in zip(mine, other, strict=True))


def test_random_crops_depend_on_seed_epoch_and_index_alone(root):
    dataset = folder(root)
    expected = epochs(FastLoader(dataset, 5, shuffle=True, seed=7), 2)
    for settings in ({"num_threads": 0}, {"num_workers": 3}):
        assert_equal_batches(epochs(FastLoader(dataset, 5, True, seed=7, **settings), 2), expected)
    assert not torch.equal(expected[0][0], epochs(FastLoader(dataset, 5, True, seed=8))[0][0])
    assert not torch.equal(expected[0][0], expected[3][0])
    for labels in (expected[:3], expected[3:]):
        assert torch.cat([part for _, part in labels]).bincount().tolist() == [4, 5, 3]


def test_an_epoch_is_resumed_exactly_and_pickled(root):
    loader = FastLoader(folder(root), 3, shuffle=True)
    next(iterator := iter(loader))
    other = FastLoader(folder(root), 3, shuffle=True)
    other.load_state_dict(loader.state_dict())
    assert_equal_batches(other, list(iterator))
    fresh = FastLoader(folder(root), 3, shuffle=True, seed=0)
    copied = pickle.loads(pickle.dumps(fresh))
    assert is_native(copied)
    assert_equal_batches(copied, fresh)


def test_random_crops_are_distributed_as_those_of_torchvision(tmp_path):
    """Of a picture that tells where it was cut and whether flipped: Kolmogorov's distances."""
    ramp = np.zeros((64, 64, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(64) * 4, (np.arange(64) * 4)[:, None]
    write_files(tmp_path, {"a/ramp.png": png(Image.fromarray(ramp))})
    transform = transforms.Compose(
        [CROP, transforms.RandomHorizontalFlip(0.3), transforms.PILToTensor()]
    )
    dataset, count = folder(tmp_path, transform), 1000
    dataset.samples = dataset.samples * count
    loader = FastLoader(dataset, count)
    assert is_native(loader)
    torch.manual_seed(0)
    (ours, _), (theirs, _) = next(iter(loader)), next(iter(DataLoader(dataset, count)))
    for ours_drawn, theirs_drawn in zip(_places(ours), _places(theirs), strict=True):
        values = np.union1d(ours_drawn, theirs_drawn)
        ranks = [np.searchsorted(np.sort(x), values, "right") for x in (ours_drawn, theirs_drawn)]
        assert np.abs(ranks[0] - ranks[1]).max() / count < 0.09  # exceeded once in 2,000 seeds


def _places(images: torch.Tensor) -> tuple[np.ndarray, ...]:
    """Left, top, width and height of crops of the ramp, and whether they were flipped."""
    columns, rows = images[:, 0, 16].int().numpy(), images[:, 1, :, 16].int().numpy()
    width, height = columns[:, -1] - columns[:, 0], rows[:, -1] - rows[:, 0]
    return columns.min(1), rows[:, 0], np.abs(width), height, width < 0


def assert_as_written(dataset, reason: str, caplog, **settings) -> None:
    recognise_image_folders.log_once.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.INFO, "fastloop"):
        loader = FastLoader(dataset, 4, **settings)
    assert not is_native(loader)
    assert reason in caplog.text


class Own(datasets.ImageFolder):
    """A folder that reads its samples in its own way."""

    def __getitem__(self, index: int):
        image, label = super().__getitem__(index)
        return image, label, index


class Darker(transforms.ToTensor):
    def __call__(self, image):
        return super().__call__(image) / 2


def steps(*parts) -> transforms.Compose:
    return transforms.Compose(parts)


TENSOR = transforms.ToTensor()
NEAREST = transforms.InterpolationMode.NEAREST
AS_WRITTEN = {
    "no transform": (None, "no transform"),
    "a function": (lambda image: TENSOR(image) / 2, "<lambda>"),
    "another transform": (steps(CROP, transforms.ColorJitter(), TENSOR), "ColorJitter"),
    "a derived class": (steps(CROP, Darker()), "Darker"),
    "a transform after it": (steps(CROP, TENSOR, transforms.RandomErasing()), "RandomErasing"),
    "another interpolation": (
        steps(transforms.RandomResizedCrop(8, interpolation=NEAREST), TENSOR),
        "Rand",
    ),
    "bicubic": (
        steps(transforms.Resize(72, transforms.InterpolationMode.BICUBIC), TENSOR),
        "Resize",
    ),
    "a fixed size": (steps(transforms.Resize((72, 72)), TENSOR), "Resize"),
    "a longest side": (steps(transforms.Resize(72, max_size=99), CENTER[1], TENSOR), "Resize"),
    "padding": (steps(transforms.Resize(50), CENTER[1], TENSOR), "allowed are 64"),
    "no crop": (steps(transforms.Resize(72), TENSOR), "tensor"),
    "no tensor": (steps(*CENTER), "tensor"),
    "flips first": (steps(FLIP, CROP, TENSOR), "RandomHorizontalFlip"),
    "two flips": (steps(CROP, FLIP, FLIP, TENSOR), "RandomHorizontalFlip"),
    "floats resized": (steps(TENSOR, CROP), "RandomResizedCrop"),
    "no antialias": (
        v2.Compose([v2.ToImage(), v2.RandomResizedCrop(8, antialias=False)]),
        "RandomResizedCrop",
    ),
    "not scaled": (v2.Compose([CROP, v2.ToImage(), v2.ToDtype(torch.float32)]), "ToDtype"),
    "half precision": (
        v2.Compose([CROP, v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]),
        "ToD",
    ),
    "one mean": (steps(CROP, TENSOR, transforms.Normalize(0.5, 0.5)), "Normalize"),
    "normalized by one": (steps(CROP, TENSOR, transforms.Normalize([0.5], [0.5])), "three numbers"),
    "a random choice": (transforms.RandomApply([CROP]), "RandomApply"),
}


@pytest.mark.parametrize(("transform", "reason"), AS_WRITTEN.values(), ids=AS_WRITTEN)
def test_other_transforms_run_as_they_are_written(root, transform, reason, caplog):
    assert_as_written(folder(root, transform), reason, caplog)


def test_other_folders_are_read_as_they_are_written(root, tmp_path, caplog, monkeypatch):
    assert_as_written(folder(root, target_transform=float), "target_transform", caplog)
    assert_as_written(folder(root, loader=Image.open), "a loader of its own", caplog)
    assert_as_written(Own(root, TRAINING), "", caplog)
    assert_as_written(folder(root), "", caplog, native=False)
    assert_as_written(folder(root), "", caplog, collate_fn=list)
    labelled = folder(root)
    labelled.samples = [(path, label / 2) for path, label in labelled.samples]
    assert_as_written(labelled, "whole numbers", caplog)
    write_files(tmp_path, {"a/deep.tif": b"x"})
    assert_as_written(folder(tmp_path), "files other than", caplog)
    assert_as_written(Subset(folder(root), [99]), "not (path, label)", caplog)
    monkeypatch.setattr("fastloop.fastloader.recognise_image_folders.has_jpeg", lambda: False)
    assert_as_written(folder(root), "decoder of JPEG is missing", caplog)


def test_derived_folders_and_single_samples(root):
    class Named(datasets.ImageFolder):
        pass

    assert is_native(FastLoader(Named(root, TRAINING), 4))
    for derived in (datasets.ImageNet, datasets.EuroSAT, datasets.Country211):
        assert derived.__getitem__ is datasets.DatasetFolder.__getitem__
    plain = datasets.DatasetFolder(root, datasets.folder.default_loader, (".jpg",), TRAINING)
    assert is_native(FastLoader(plain, 4))
    dataset = folder(root, VALIDATION["version 2"])
    (image, label), sample = (
        next(iter(FastLoader(dataset, None))),
        next(iter(DataLoader(dataset, None))),
    )
    assert (type(image), type(label)) == (type(sample[0]), type(sample[1]))


def test_the_log_says_once_what_is_read_natively(root, caplog):
    recognise_image_folders.log_once.cache_clear()
    with caplog.at_level(logging.INFO, "fastloop"):
        for _ in range(3):
            FastLoader(folder(root), 4)
    (record,) = caplog.records
    assert "ImageFolder of 12 images is read natively, as fastloop.Images(paths, " in record.message
    assert "flip=0.5, normalize=((0.485, 0.456, 0.406), (0.229, " in record.message
    assert "native=False" in record.message


def test_a_changed_transform_holds_from_the_next_epoch_on(root):
    dataset = folder(root, VALIDATION["version 1"])
    loader = FastLoader(Subset(dataset, range(4)), 4)
    assert next(iter(loader))[0].shape == (4, 3, 64, 64)
    dataset.transform = steps(
        transforms.Resize(40), transforms.CenterCrop(30), transforms.PILToTensor()
    )
    (images, _), (expected, _) = next(iter(loader)), next(iter(DataLoader(dataset, 4)))
    assert_same_images(images, expected)


def relabel(dataset, _):
    dataset.samples = [(path, 9 - label) for path, label in dataset.samples]


def relabel_one(dataset, _):
    dataset.samples[2] = (dataset.samples[2][0], 77)


def reverse(dataset, subset):
    dataset.samples.reverse()
    subset.indices = subset.indices[::-1]


def shorten(dataset, subset):
    del dataset.samples[5:]
    subset.indices = [0, 2]


def replace_target(dataset, _):
    dataset.target_transform = lambda label: label + 100


def replace_transform(dataset, _):
    dataset.transform = steps(*CENTER, TENSOR, transforms.Lambda(torch.zeros_like))


def hook_transform(dataset, _):
    dataset.transform.register_forward_hook(lambda _, inputs, output: output * 0)


def patch_class(dataset, _):
    type(dataset).__getitem__ = lambda _, index: (torch.full((3, 64, 48), index / 9), index)


CHANGES = [relabel, relabel_one, reverse, shorten, replace_target, replace_transform]


@pytest.mark.parametrize("change", [*CHANGES, hook_transform, patch_class])
@pytest.mark.parametrize("is_subset", [False, True], ids=["folder", "subset"])
def test_a_changed_folder_is_read_as_dataloader_reads_it(root, change, is_subset, monkeypatch):
    composed = v2.Compose([v2.Resize(72), v2.CenterCrop((64, 48)), v2.ToImage(), FLOAT])
    dataset = folder(root, composed)
    subset = Subset(dataset, [0, 2, 4, 3])
    loader, expected = (
        kind(subset if is_subset else dataset, 3) for kind in (FastLoader, DataLoader)
    )
    list(loader)
    assert is_native(loader)
    monkeypatch.setattr(datasets.DatasetFolder, "__getitem__", datasets.DatasetFolder.__getitem__)
    monkeypatch.setattr(datasets.ImageFolder, "__getitem__", datasets.DatasetFolder.__getitem__)
    change(dataset, subset)
    assert len(loader) == len(expected)
    for _ in range(2):
        for (images, labels), (theirs, others) in zip(loader, expected, strict=True):
            assert_same_images(images, theirs, 1.0)
            assert torch.equal(labels, others)
    assert is_native(loader) == (change in CHANGES[:4])


def test_a_folder_that_is_not_changed_is_opened_once(root):
    loader = FastLoader(Subset(folder(root, VALIDATION["version 1"]), [1, 0]), 4)
    reading = loader._reading
    for _ in range(2):
        list(loader)
    assert loader._reading is reading


@pytest.mark.parametrize("name", ["text", "half a JPEG", "empty file"])
def test_a_broken_file_is_named(root, tmp_path, name):
    write_files(tmp_path, {"a/good.jpg": BROKEN_FREE, "a/worse.jpg": BROKEN[name][0]})
    loader = FastLoader(folder(tmp_path), 2)
    assert is_native(loader)
    with pytest.raises(ValueError, match=r"/worse\.jpg: "):
        list(loader)


def test_pillow_reads_truncated_files_where_a_program_lets_it(tmp_path, monkeypatch):
    half = BROKEN_FREE[: len(BROKEN_FREE) * 3 // 4]
    write_files(tmp_path, {"a/half.jpg": half})
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    dataset = folder(tmp_path, VALIDATION["version 1"])
    (ours, _), (theirs, _) = next(iter(FastLoader(dataset))), next(iter(DataLoader(dataset)))
    assert_same_images(ours, theirs)


BROKEN_FREE = jpeg(photograph().resize((160, 120)))


def test_pixels_of_files_do_not_depend_on_exif_or_transparency(tmp_path):
    """As torchvision's, whose loader is Image.open(file).convert("RGB")."""
    kinds = {name: data for name, data in IMAGES.items() if "CMYK" not in name}
    files = {
        f"a/{n:02}.{'png' if data[1:4] == b'PNG' else 'jpg'}": data
        for n, data in enumerate(kinds.values())
    }
    file = io.BytesIO()
    photograph().resize((90, 70)).save(file, "WEBP")
    dataset = folder(
        write_files(tmp_path, files | {"a/z.webp": file.getvalue()}), VALIDATION["version 1"]
    )
    loader = FastLoader(dataset, 4)
    assert is_native(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about transparent palettes
        expected = list(DataLoader(dataset, 4))
    for (ours, _), (theirs, _) in zip(loader, expected, strict=True):
        assert_same_images(ours, theirs)


PIECES = [
    CROP,
    FLIP,
    TENSOR,
    NORMALIZE,
    *CENTER,
    transforms.PILToTensor(),
    transforms.ConvertImageDtype(torch.float32),
    v2.RandomResizedCrop((20, 30)),
    v2.RandomHorizontalFlip(1.0),
    v2.Resize([40]),
    v2.CenterCrop([40]),
    v2.ToImage(),
    v2.ToPureTensor(),
    FLOAT,
    v2.ToDtype(torch.uint8, scale=True),
    v2.ToDtype(torch.float32),
    v2.Normalize(MEAN, STD),
]


@given(order=st.lists(st.sampled_from(PIECES), min_size=2, max_size=6))
@example(order=[CROP, FLIP, TENSOR, NORMALIZE])
@example(order=[v2.ToImage(), *CENTER, FLOAT])
def test_any_composition_makes_of_a_plain_colour_what_torchvision_makes(colour, order):
    dataset = folder(colour, v2.Compose(order))
    loader = FastLoader(dataset, num_threads=0)
    if is_native(loader):
        (images, _), (expected, _) = next(iter(loader)), next(iter(DataLoader(dataset)))
        assert (images.dtype, images.shape) == (expected.dtype, expected.shape)
        assert torch.allclose(images, expected, atol=1e-5)


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    """A folder of one image of one colour."""
    plain = png(Image.new("RGB", (90, 70), (200, 100, 50)))
    return write_files(tmp_path_factory.mktemp("colour"), {"a/plain.png": plain})
