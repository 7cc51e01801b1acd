"""write_store refuses random samples, of which a store would repeat one draw in every epoch."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset
from torchvision.transforms import v2

from fastloop import FastLoader, open_store, write_store

OWN = np.random.default_rng(3)


class Samples(Dataset):
    def __init__(self, make: Any, count: int = 20) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def seed_and_draw(index: int) -> Any:
    torch.manual_seed(index)
    np.random.seed(index)
    random.seed(index)
    return torch.rand(2), np.random.rand(2), random.random()


def draw_seldom(index: int) -> torch.Tensor:
    """Noise in one of a billion samples."""
    return torch.full((2,), index + float(torch.rand(()) < 1e-9))


IMAGE = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(3, 8, 8)
CROP = v2.RandomResizedCrop(4)
RANDOM = {
    "torch": (lambda index: torch.rand(2) + index, "draws from the generator of torch"),
    "numpy": (lambda index: np.random.rand(2) + index, "draws from the generator of numpy"),
    "random": (lambda index: random.random() + index, "draws from the generator of random"),
    "a generator of its own": (
        lambda index: OWN.random(2) + index,
        "differs when it is read again",
    ),
    "crops": (lambda index: (CROP(IMAGE), index), "draws from the generator of torch"),
    "seldom": (draw_seldom, "draws from the generator of torch"),
    "one of all": (
        lambda index: torch.rand(2) if index == 19 else torch.zeros(2),
        r"\(sample 19: it draws",
    ),
}
REPEATABLE = {
    "no number": lambda index: (index * float("nan"), torch.full((2,), torch.nan)),
    "plain": lambda index: (torch.full((2,), index), {"y": index}),
    "seeded by its index": seed_and_draw,
    "a generator for each sample": lambda index: np.random.default_rng(index).random(3),
}


@pytest.mark.parametrize(("make", "message"), RANDOM.values(), ids=RANDOM)
def test_random_samples_are_refused_with_what_to_do(tmp_path, make, message):
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    with pytest.raises(ValueError, match=message) as caught:
        write_store(Samples(make), tmp_path / "store")
    assert "dataset=Samples has random samples" in str(caught.value)
    assert "FastLoader(dataset) draws again in each epoch, allow_random=True" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()]
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    assert (before[2] == np.random.get_state()[1]).all()


def test_random_samples_inside_a_subset_are_refused(tmp_path):
    with pytest.raises(ValueError, match="dataset=Subset has random samples"):
        write_store(
            Subset(Samples(lambda index: torch.rand(index + 1)), [3, 4]), tmp_path / "store"
        )


def test_image_folder_is_sent_to_its_files(tmp_path):
    class Folder(Samples):
        samples: ClassVar = [("a.jpg", 0)]

    with pytest.raises(ValueError, match=r'images="as_is" stores the files of an image folder'):
        write_store(Folder(lambda index: CROP(IMAGE)), tmp_path / "store")


def test_allow_random_stores_one_draw(tmp_path):
    root = write_store(Samples(lambda _: torch.rand(2)), tmp_path / "store", allow_random=True)
    first, second = (torch.cat(list(FastLoader(open_store(root), 7))) for _ in range(2))
    assert torch.equal(first, second)
    assert len(first.unique()) > 30


@pytest.mark.parametrize("make", REPEATABLE.values(), ids=REPEATABLE)
def test_repeatable_samples_are_stored(tmp_path, make):
    for _ in range(2):  # the second time they are compared
        root = write_store(Samples(make), tmp_path / "store")
    stored = torch.utils._pytree.tree_leaves(open_store(root))
    made = torch.utils._pytree.tree_leaves(make(7))
    assert repr([leaf[7].tolist() for leaf in stored]) == repr(
        [np.asarray(leaf).tolist() for leaf in made]
    )
