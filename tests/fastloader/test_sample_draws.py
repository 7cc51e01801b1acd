"""Random samples and transforms draw the same in an epoch whatever thread reads them."""

from __future__ import annotations

import random
import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

import fastloop
from fastloop import FastLoader

THREADS = [0, 1, 2, 3]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


class RandomSamples(Dataset):
    """(what was drawn, index) samples."""

    def __init__(self, draw, count: int = 23) -> None:
        self.draw, self.count = draw, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return self.draw(), index


class RandomBatches(RandomSamples):
    """Samples that are read by whole batches."""

    def __getitems__(self, indices: list[int]):
        return [self[index] for index in indices]


def draw_torch() -> torch.Tensor:
    return torch.cat(
        [
            torch.rand(2),
            torch.randn(1),
            torch.empty(1).uniform_(),
            torch.dropout(torch.ones(3), 0.5, True),
        ]
    )


def draw_numpy() -> float:
    return float(np.random.rand())


def draw_random() -> float:
    return random.random()


def draw_all() -> float:
    return draw_numpy() + draw_random() + float(draw_torch().sum())


def draw_by_seed() -> float:
    seed = fastloop.sample_seed()
    assert seed == fastloop.sample_seed()
    return float(np.random.default_rng(seed).random()) + random.Random(seed).random()


DRAWS = [draw_torch, draw_numpy, draw_random, draw_all, draw_by_seed]


def epochs(loader: FastLoader, count: int = 2) -> list:
    return [[(drawn.tolist(), labels.tolist()) for drawn, labels in loader] for _ in range(count)]


def states() -> tuple:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def quiet(draw):
    """Expect the warning that threads would share a generator, or none."""
    shared = draw in (draw_numpy, draw_random, draw_all)
    return pytest.warns(UserWarning, match="which threads share") if shared else nullcontext()


@pytest.mark.parametrize("kind", [RandomSamples, RandomBatches])
@pytest.mark.parametrize("draw", DRAWS)
def test_any_number_of_threads_draws_the_same_epoch(draw, kind):
    expected = None
    for num_threads in THREADS:
        loader = FastLoader(kind(draw), 4, shuffle=True, num_threads=num_threads, seed=5)
        before = states()
        with quiet(draw) if num_threads else nullcontext():
            delivered = epochs(loader)
        assert states() == before  # of the loop itself
        expected = expected or delivered
        assert delivered == expected
    assert expected[0] != expected[1]
    other = FastLoader(kind(draw), 4, shuffle=True, num_threads=0, seed=6)
    assert epochs(other) != expected


@pytest.mark.parametrize("num_threads", THREADS)
def test_draws_depend_on_seed_epoch_and_index_alone(num_threads):
    """Neither on the order, nor on the size of a batch, nor on where an epoch is resumed."""
    dataset = RandomSamples(draw_torch)
    by_index = {}
    for settings in ({"batch_size": 4}, {"batch_size": 7, "shuffle": True}, {"batch_size": None}):
        loader = FastLoader(dataset, num_threads=num_threads, seed=0, **settings)
        for drawn, labels in loader:
            for row, label in zip(drawn.view(-1, 7), torch.as_tensor(labels).view(-1), strict=True):
                assert by_index.setdefault(int(label), row.tolist()) == row.tolist()
    assert len({tuple(row) for row in by_index.values()}) == len(dataset)
    loader = FastLoader(dataset, 4, num_threads=num_threads, seed=0)
    running = iter(loader)
    next(running)
    resumed = FastLoader(dataset, 4, num_threads=num_threads, seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert all(
        by_index[int(label)] == row.tolist()
        for rows, labels in resumed
        for row, label in zip(rows, labels, strict=True)
    )


@pytest.mark.parametrize(
    "how", [{"num_threads": 0}, {"num_threads": 2}, {"num_workers": 2}], ids=str
)
def test_epochs_after_the_same_manual_seed_draw_alike(how):
    loader = FastLoader(RandomSamples(draw_torch), 4, **how)
    epochs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        epochs.append([drawn.tolist() for drawn, _ in loader])
    assert epochs[0] == epochs[1]
    assert epochs[1] != epochs[2]


@pytest.mark.parametrize("draw", [draw_torch, draw_numpy])
def test_the_loops_own_draws_are_not_disturbed_while_threads_draw(draw):
    def draws_of_loop(num_threads: int | None) -> list:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if num_threads is None:
            batches = range(12)
        else:
            batches = FastLoader(RandomSamples(draw, 48), 4, num_threads=num_threads, seed=0)
        drawn = []
        for _ in batches:
            drawn += [torch.rand(50).tolist(), np.random.rand(3).tolist(), random.random()]
        return drawn

    alone = draws_of_loop(None)
    for num_threads in THREADS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert draws_of_loop(num_threads) == alone


def test_random_collation_and_transforms_draw_the_same_in_any_thread():
    def collate(samples: list):
        drawn, labels = default_collate(samples)
        return drawn + torch.rand(1), labels

    def transform(batch):
        return batch[0] + torch.rand(1), batch[1]

    def deliver(source, num_threads, **settings):
        return epochs(FastLoader(source, 4, num_threads=num_threads, seed=0, **settings))

    rows = torch.zeros(23, 2), torch.arange(23)
    for source, settings in [
        (RandomSamples(draw_torch), {"collate_fn": collate}),
        (RandomSamples(draw_torch), {"transform": transform}),
        (rows, {"transform": transform}),
    ]:
        expected = deliver(source, 0, **settings)
        assert all(deliver(source, number, **settings) == expected for number in (1, 2, 3))
        assert len({str(drawn) for drawn, _ in expected[0]}) == len(expected[0])


class Seeded(Dataset):
    """Samples that seed torch themselves, as torchvision's FakeData does."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        before = torch.get_rng_state()
        torch.manual_seed(index)
        image = torch.randn(3, 8)
        torch.set_rng_state(before)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index + 1000)
            label = torch.rand(())
        return image, label, torch.rand(())


@pytest.mark.parametrize("settings", [{}, *({"num_threads": n} for n in (0, 1, 3))], ids=str)
def test_samples_that_seed_torch_draw_as_in_a_dataloader(settings):
    expected = list(DataLoader(Seeded(), 8))
    state = torch.get_rng_state()
    epoch = list(FastLoader(Seeded(), 8, seed=3, **settings))
    for batch, other in zip(epoch, expected, strict=True):
        assert torch.equal(batch[0], other[0])
        assert torch.equal(batch[1], other[1])
    assert torch.equal(torch.get_rng_state(), state)
    # Programs pass it as generator=.
    assert torch.random.default_generator is torch.default_generator
    # what the sample draws by itself is the loader's, whatever the sample has seeded in between
    alone = list(FastLoader(Seeded(), 8, seed=3, num_threads=0))
    assert all(torch.equal(a[2], b[2]) for a, b in zip(epoch, alone, strict=True))


def test_sample_seed_works_without_fastloader():
    torch.manual_seed(3)
    dataset = RandomSamples(draw_by_seed_once)
    seeds = [int(seed) for drawn, _ in DataLoader(dataset, 4) for seed in drawn]
    assert len(set(seeds)) == len(dataset)
    torch.manual_seed(3)
    assert [int(seed) for drawn, _ in DataLoader(dataset, 5) for seed in drawn] == seeds


def draw_by_seed_once() -> int:
    return fastloop.sample_seed()


def test_draws_that_no_generator_can_be_passed_to_are_refused_in_threads():
    def draw() -> torch.Tensor:
        return torch.native_dropout(torch.ones(9), 0.5, True)[0]

    loader = FastLoader(RandomSamples(draw), 4, num_threads=0, seed=0)
    assert epochs(loader)[0] == epochs(FastLoader(RandomSamples(draw), 4, num_threads=0, seed=0))[0]
    with pytest.raises(RuntimeError, match=r"no argument generator.*num_threads=0"):
        list(FastLoader(RandomSamples(draw), 4, num_threads=1))


FLIP = v2.RandomHorizontalFlip(0.5)


def draw_elsewhere(device: str) -> tuple[int, ...]:
    drawn = torch.rand(2, device=device) + torch.empty(2, device=device).normal_()
    dropped = torch.dropout(drawn + torch.rand_like(drawn), 0.5, True)
    with torch.device(device):
        return tuple(torch.bernoulli((dropped + torch.rand(2)).clamp(0, 1)).shape)


@pytest.mark.parametrize("num_threads", THREADS)
@pytest.mark.parametrize(
    "device", ["meta", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]
)
def test_samples_may_draw_on_another_device(device, num_threads):
    samples = RandomSamples(partial(draw_elsewhere, device), 12)
    loader = FastLoader(samples, 4, num_threads=num_threads)
    assert torch.cat([rows for (rows,), _ in loader]).tolist() == [2] * 12


@pytest.mark.parametrize(
    "transform",
    [
        FLIP,
        v2.Compose([v2.Identity(), FLIP]),
        torch.nn.Sequential(FLIP),
        v2.RandomApply([v2.RandomHorizontalFlip(1)], 0.5),
    ],
    ids=["flip", "composed", "sequential", "applied"],
)
@pytest.mark.parametrize("num_threads", [0, 2])
def test_random_transform_of_torchvision_draws_for_each_sample(transform, num_threads):
    images = torch.arange(4.0).expand(64, 3, 4, 4).clone()
    loader = FastLoader(
        (images, torch.arange(64)), 16, transform=transform, num_threads=num_threads, seed=0
    )
    first, second = ([(batch[:, 0, 0, 0] == 3).tolist() for batch, _ in loader] for _ in range(2))
    assert all(0 < sum(flips) < 16 for flips in first)
    assert first != second
    again = FastLoader((images, torch.arange(64)), 16, transform=transform, num_threads=1, seed=0)
    assert [(batch[:, 0, 0, 0] == 3).tolist() for batch, _ in again] == first


def test_other_transforms_get_whole_batches():
    shapes = [
        tuple(batch)
        for batch in FastLoader(torch.zeros(8, 3, 4, 4), 4, transform=lambda batch: batch.shape)
    ]
    assert shapes == [(4, 3, 4, 4)] * 2
    resize = FastLoader(torch.zeros(8, 3, 4, 4), 4, transform=v2.Resize(2))
    assert [tuple(batch.shape) for batch in resize] == [(4, 3, 2, 2)] * 2


class Nested(RandomSamples):
    """Samples that iterate over a loader of their own before they draw."""

    def __getitem__(self, index: int):
        assert len(list(FastLoader(RandomSamples(draw_torch, 3), 2, num_threads=0))) == 2
        return super().__getitem__(index)


@pytest.mark.parametrize("num_threads", THREADS)
def test_a_sample_that_iterates_over_a_loader_draws_by_its_index_alone(num_threads):
    dataset = Nested(draw_torch, 12)
    few, many = (FastLoader(dataset, n, num_threads=num_threads, seed=0) for n in (3, 6))
    assert torch.equal(*(torch.cat([rows for rows, _ in loader]) for loader in (few, many)))
