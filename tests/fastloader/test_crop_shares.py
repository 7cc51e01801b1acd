"""Crops of ranks, workers and resumed epochs: each has the pixels that a single process makes."""

from __future__ import annotations

import json

import pytest
import torch
from image_samples import jpeg, photograph
from native_jpeg import needs_jpeg

from fastloop import FastLoader, Images, RandomResizedCrop

NUM_IMAGES = 24
DECODERS = [pytest.param("native", marks=needs_jpeg), "pil"]


@pytest.fixture(params=DECODERS)
def source(request):
    """(crops, numbers of the images)."""
    boxes = [(9 * k, 5 * k, 100 + 12 * k, 90 + 10 * k) for k in range(NUM_IMAGES)]
    photos = [jpeg(photograph().crop(box)) for box in boxes]
    images = Images(photos, crop=RandomResizedCrop(16), flip=0.5, decoder=request.param)
    return images, torch.arange(NUM_IMAGES)


def open_loader(source, **settings) -> FastLoader:
    return FastLoader(source, 4, shuffle=True, seed=7, **settings)


def epoch_of(loader: FastLoader, epoch: int) -> list:
    loader.set_epoch(epoch)
    return list(loader)


def by_number(batches) -> dict[int, torch.Tensor]:
    """Each image by its number; fails where one comes twice."""
    pairs = [pair for images, numbers in batches for pair in zip(numbers.tolist(), images)]  # noqa: B905
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def assert_same_batches(batches, others) -> None:
    for (images, numbers), (other_images, other_numbers) in zip(batches, others, strict=True):
        assert torch.equal(numbers, other_numbers)
        assert torch.equal(images, other_images)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("epoch", [0, 3])
def test_ranks_divide_the_crops_of_a_single_process(source, world_size, epoch):
    whole = by_number(epoch_of(open_loader(source), epoch))
    shares = [
        by_number(epoch_of(open_loader(source, rank=rank, world_size=world_size), epoch))
        for rank in range(world_size)
    ]
    assert [len(share) for share in shares] == [NUM_IMAGES // world_size] * world_size
    together = {number: image for share in shares for number, image in share.items()}
    assert together.keys() == whole.keys() == {*range(NUM_IMAGES)}
    assert all(torch.equal(image, whole[number]) for number, image in together.items())


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_crops_do_not_depend_on_the_number_of_workers(source, num_workers):
    expected = [epoch_of(open_loader(source, num_threads=1), epoch) for epoch in (0, 1)]
    loader = open_loader(source, num_workers=num_workers)
    for epoch in (0, 1):
        assert_same_batches(epoch_of(loader, epoch), expected[epoch])


@pytest.mark.parametrize("share", [{}, {"rank": 1, "world_size": 2}], ids=["whole", "rank 1 of 2"])
@pytest.mark.parametrize("done", [1, 2])
def test_an_epoch_that_was_left_goes_on_with_the_same_pixels(source, share, done):
    expected = epoch_of(open_loader(source, **share), 2)
    loader = open_loader(source, num_threads=2, **share)
    loader.set_epoch(2)
    running = iter(loader)
    for _ in range(done):
        next(running)
    state = json.loads(json.dumps(loader.state_dict()))
    for settings in ({"num_threads": 0}, {"num_threads": 3}, {"num_workers": 2}):
        resumed = open_loader(source, **settings, **share)
        resumed.load_state_dict(state)
        assert_same_batches(list(resumed), expected[done:])
        assert_same_batches(epoch_of(resumed, 2), expected)
