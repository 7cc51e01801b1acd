"""An error of a sample takes the place of its batch: the following next() has the following one."""

from __future__ import annotations

import os

import pytest
import torch
from image_samples import crop, png, write_files
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from fastloop import FastLoader, Images

FAULTY = 5, 6, 14
WAYS = {
    "the loop": {"num_threads": 0},
    "threads": {"num_threads": 2},
    "processes": {"num_workers": 2},
}


class Samples(Dataset):
    """Samples of which some can't be read."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> int:
        if index in FAULTY:
            raise LookupError(f"no sample {index}")
        return index


class Pids(Samples):
    def __getitem__(self, index: int) -> int:
        super().__getitem__(index)
        return os.getpid()


class Fetched(Samples):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def collate(samples: list[int]):
    if set(FAULTY) & set(samples):
        raise LookupError("no batch")
    return default_collate(samples)


def transform(batch):
    collate(batch.tolist())
    return batch


def walk(loader) -> list:
    """The batches of an epoch that goes on after errors, as lists, and None for each error."""
    found, running = [], iter(loader)
    while True:
        try:
            batch = next(running)
        except LookupError:
            found.append(None)
        except StopIteration:
            return found
        else:
            found.append(torch.as_tensor(batch).tolist())


def walk_again(loader) -> list:
    """Two epochs that begin with the same generators."""
    epochs = []
    for _ in range(2):
        torch.manual_seed(3)
        if loader.generator is not None:
            loader.generator.manual_seed(4)
        epochs.append(walk(loader))
    return epochs


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (Samples(), {}),
        (Samples(), {"shuffle": True, "drop_last": True}),
        (Samples(), {"shuffle": True, "generator": torch.Generator()}),
        (Samples(), {"batch_size": None}),
        (Samples(), {"batch_size": 1, "batch_sampler": [[3, 4], [5], [6, 7], [8]]}),
        (Fetched(), {}),
        (list(range(22)), {"collate_fn": collate}),
    ],
    ids=["samples", "shuffled", "generator", "single", "batch sampler", "getitems", "collate"],
)
def test_an_epoch_goes_on_after_an_error_as_dataloaders_does(dataset, settings, how):
    settings = {"batch_size": 4} | settings
    expected = walk_again(DataLoader(dataset, **settings))
    assert None in expected[0]
    assert walk_again(FastLoader(dataset, **settings, **how)) == expected


def test_processes_persist_after_an_error():
    loader = FastLoader(Pids(), 2, num_workers=2, persistent_workers=True)
    pids = [[pid for pid in walk(loader) if pid is not None] for _ in range(3)]
    assert {pid for batch in pids[0] for pid in batch} == {
        pid for batch in pids[2] for pid in batch
    }


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_an_epoch_goes_on_after_an_error_of_a_transform(how):
    source = torch.arange(22) if how.get("num_workers") is None else range(22)
    expected = walk(DataLoader(list(range(22)), 4, collate_fn=collate))
    assert walk(FastLoader(source, 4, transform=transform, **how)) == expected


@pytest.mark.parametrize("num_threads", [0, 2])
def test_the_images_beside_a_broken_one_are_delivered(num_threads, tmp_path):
    files = {f"{number}.png": png(crop()) for number in range(30)} | {"17.png": b"no image"}
    root = write_files(tmp_path, files)
    images = Images([root / name for name in files], (8, 8), decoder="pil")
    loader = FastLoader((images, torch.arange(30)), 1, num_threads=num_threads)
    running, numbers = iter(loader), []
    for number in range(30):
        if number == 17:
            with pytest.raises(ValueError, match=r"17\.png"):
                next(running)
        else:
            numbers += next(running)[1].tolist()
    assert next(running, None) is None
    assert numbers == [number for number in range(30) if number != 17]


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_state_begins_with_the_batch_that_has_failed_or_behind_it(how):
    loader = FastLoader(Samples(), 4, **how)
    running = iter(loader)
    next(running)
    with pytest.raises(LookupError):
        next(running)
    failed = loader.state_dict()
    assert next(running).tolist() == [8, 9, 10, 11]
    later = loader.state_dict()
    for state, first in (failed, 4), (later, 12):
        resumed = FastLoader(Samples(), 4, **how)
        resumed.load_state_dict(state)
        assert walk(resumed) == walk(DataLoader(Samples(), 4))[first // 4 :]


class Stream(IterableDataset):
    """A stream of numbers, of which some can't be read; it keeps its place."""

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == 22:
            raise StopIteration
        self.at += 1
        return Samples()[self.at - 1]


class Unready(IterableDataset):
    def __iter__(self):
        raise LookupError("no stream")


class Generated(IterableDataset):
    def __iter__(self):
        return (Samples()[index] for index in range(22))


@pytest.mark.parametrize("how", [{"num_threads": 0}, {}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("stream", [Stream(), Generated()], ids=["iterator", "generator"])
def test_a_stream_goes_on_after_an_error_if_its_iterator_does(stream, how):
    expected = walk(DataLoader(stream, 3))
    assert expected[1] is None
    assert walk(FastLoader(stream, 3, **how)) == expected


@pytest.mark.parametrize("how", [{"num_threads": 0}, {}], ids=str)
def test_a_stream_that_can_not_begin_has_one_error(how):
    assert walk(FastLoader(Unready(), 3, **how)) == [None]
