"""StopIteration out of a user's code is an error, and never the end of an epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from fastloop import FastLoader
from fastloop.fastloader.columns.column import SampleSpec

WAYS = {
    "the loop": {"num_threads": 0},
    "threads": {"num_threads": 2},
    "processes": {"num_workers": 2},
}
FAULTY = 14


def raise_stop() -> None:
    next(iter(()))


class Samples(Dataset):
    """Samples of which one may raise, in one of the ways in which a Dataset is read."""

    def __init__(self, raises: bool = True) -> None:
        self.raises = raises

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> int:
        if index == FAULTY and self.raises:
            raise_stop()
        return index


class Batches(Samples):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(50))


def collate(samples: list[int]):
    if FAULTY in samples:
        raise_stop()
    return default_collate(samples)


def transform(batch):
    if FAULTY in batch.tolist():
        raise_stop()
    return batch


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (Samples(), {}, "the reading of sample 14 raised StopIteration"),
        (Batches(), {}, "the reading of samples 12, 13, 14, 15 raised StopIteration"),
        (Samples(), {"batch_size": None}, "the reading of sample 14 raised StopIteration"),
        (
            Samples(raises=False),
            {"collate_fn": collate},
            "the collate_fn of samples 12, 13, 14, 15 raised StopIteration",
        ),
        (
            Samples(raises=False),
            {"transform": transform},
            "the transform of samples 12, 13, 14, 15 raised StopIteration",
        ),
    ],
)
def test_stop_iteration_of_a_sample_is_an_error_that_names_it(how, source, settings, message):
    delivered = []
    with pytest.raises(RuntimeError, match=message):
        delivered.extend(FastLoader(source, **{"batch_size": 4} | settings, **how))
    assert len(delivered) == (FAULTY if settings.get("batch_size", 4) is None else 3)


@pytest.mark.parametrize("how", [{}, {"num_threads": 0}, {"num_workers": 1}], ids=str)
def test_stop_iteration_of_an_iterables_collate_fn_is_an_error(how):
    delivered = []
    with pytest.raises(RuntimeError, match="the collate_fn raised StopIteration"):
        delivered.extend(FastLoader(Stream(), 4, collate_fn=collate, **how))
    assert len(delivered) == 3


class Rows:
    """A column whose rows can't be made."""

    def __init__(self, like) -> None:
        self.spec = like

    def __len__(self) -> int:
        return 50

    def fill(self, indices, out) -> None:
        raise_stop()


@pytest.mark.heavy
@pytest.mark.parametrize("num_threads", [0, 2])
def test_stop_iteration_of_a_column_is_an_error(num_threads):
    rows = Rows(SampleSpec(torch.int64, ()))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(FastLoader(rows, 4, num_threads=num_threads))
