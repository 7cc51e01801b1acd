"""DataLoader's parameters and attributes, as code that was written for it uses them."""

from __future__ import annotations

import inspect
import itertools
import warnings
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)

from fastloop import FastLoader, converted


class Numbers(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int):
        return torch.full((3,), float(index)), index


def test_parameters_come_in_dataloaders_order():
    ours, theirs = (
        list(inspect.signature(kind).parameters.values()) for kind in (FastLoader, DataLoader)
    )
    count = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in theirs)
    names = [parameter.name for parameter in theirs]
    assert [parameter.name for parameter in ours[:count]] == names[:count]
    assert set(names) <= {parameter.name for parameter in ours}
    batches = list(FastLoader(Numbers(), 4, True, None, None, 0, list, False, True))
    assert sorted(index for batch in batches for _, index in batch) == [*range(20)]


@pytest.mark.parametrize("name", ["dataset", "source"])
def test_the_dataset_may_be_named(name):
    loader = FastLoader(**{name: Numbers()}, batch_size=20)
    ((_, indices),) = loader
    assert indices.tolist() == [*range(20)]
    assert isinstance(loader.dataset, Numbers)


@pytest.mark.parametrize(
    ("given", "problem"), [({}, "neither is"), ({"dataset": [1], "source": [1]}, "both are")]
)
def test_one_dataset_is_needed(given, problem):
    with pytest.raises(TypeError, match=f"takes a dataset, also as source=; {problem} given$"):
        FastLoader(**given)


def test_the_class_takes_a_type_as_dataloader_does():
    assert get_args(FastLoader[int]) == get_args(DataLoader[int]) == (int,)
    assert isinstance(FastLoader[int]([1, 2]), FastLoader)


def test_settings_that_dataloader_lets_be_assigned_take_effect():
    loader = FastLoader(Numbers(), 20)
    loader.collate_fn = len
    assert list(loader) == [20]
    loader.num_workers = 2
    assert (loader.num_workers, list(loader)) == (2, [20])
    loader.collate_fn = lambda samples: get_worker_info().num_workers
    assert list(loader) == [2]
    loader.num_workers = 0
    loader.collate_fn = lambda samples: get_worker_info()
    assert list(loader) == [None]
    for name, value in (("num_workers", -1), ("timeout", -1), ("collate_fn", 5)):
        before = getattr(loader, name)
        with pytest.raises((TypeError, ValueError), match=f"^{name}={value}"):
            setattr(loader, name, value)
        assert getattr(loader, name) == before
    assert list(loader) == [None]


@pytest.mark.parametrize("source", [[1.5, 2], torch.arange(2), Numbers()])
def test_collate_fn_of_single_samples_is_that_of_dataloader(source):
    ours = FastLoader(source, None)
    theirs = DataLoader(ours.dataset, None)
    assert ours.collate_fn is theirs.collate_fn
    again = DataLoader(ours.dataset, None, collate_fn=ours.collate_fn)
    assert [str(sample) for sample in again] == [str(sample) for sample in ours]


def test_arrays_of_the_other_byte_order_are_named():
    swapped = np.arange(4).astype(np.dtype("f4").newbyteorder())
    message = r"^dataset\['b'\] has the byte order of dtype .*: astype\('float32'\)"
    with pytest.raises(ValueError, match=message):
        FastLoader({"a": np.arange(4), "b": swapped}, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"persistent_workers": True},
            "persistent_workers=True has no effect in FastLoader: threads",
        ),
        ({"worker_init_fn": print}, "worker_init_fn=.* has no effect.*fastloop.sample_seed"),
        ({"timeout": 30}, "timeout=30 has no effect"),
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context='spawn' has no effect"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device='cuda' has no effect.*device="),
        ({"in_order": False}, "in_order=False has no effect.*in order unless"),
    ],
)
def test_parameters_without_a_meaning_warn_once(settings, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = FastLoader(Numbers(), 4, **settings)
        assert len(list(loader)) == 5
    assert len(caught) == 1
    with pytest.raises(UserWarning, match=message):
        raise caught[0].message
    assert caught[0].filename == __file__


def test_defaults_of_dataloaders_parameters_warn_of_nothing():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(DataLoader).parameters.items()
        if name != "dataset"
    }
    assert len(list(FastLoader(Numbers(), **defaults))) == 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_pinning_without_a_cuda_device_warns():
    with pytest.warns(UserWarning, match="pin_memory=True has no effect: there is no CUDA device"):
        loader = FastLoader(torch.arange(9), 4, pin_memory=True)
    assert torch.equal(torch.cat(list(loader)), torch.arange(9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches():
    for source, transform in [
        (torch.arange(99), None),
        (Numbers(), None),
        (torch.arange(99), torch.neg),
    ]:
        loader = FastLoader(source, 4, pin_memory=True, transform=transform, copy=False)
        for batch in loader:
            assert all(leaf.is_pinned() for leaf in (batch if isinstance(batch, list) else [batch]))


def test_num_workers_is_the_number_of_processes_or_of_threads_where_these_read():
    for source, settings, expected in [
        (Numbers(), {"num_workers": 3}, 0),  # besides the processes
        (Numbers(), {"num_workers": 3, "transform": list}, 1),
        (Numbers(), {"num_workers": 0}, 0),
        (Numbers(), {"num_workers": 3, "num_threads": 2}, 2),
        (Numbers(), {"num_workers": 3, "thread_safe": True}, 3),
        (torch.arange(20), {"num_workers": 3}, 3),
        (Numbers(), {}, 1),
    ]:
        loader = FastLoader(source, 4, **settings)
        assert loader.num_threads == expected
        assert len(list(loader)) == 5
    with pytest.raises(ValueError, match="num_workers=-1: allowed is 0 or more"):
        FastLoader(Numbers(), num_workers=-1)


def test_settings_of_processes_are_theirs():
    """And warn of nothing."""
    settings = {
        "worker_init_fn": abs,
        "timeout": 100,
        "multiprocessing_context": "fork",
        "persistent_workers": True,
    }
    assert len(list(FastLoader(Numbers(), 4, num_workers=1, **settings))) == 5


SOURCES = {
    "dataset": Numbers(),
    "tuple": (torch.arange(20.0), np.arange(20)),
    "dict": {
        "x": converted(torch.arange(40, dtype=torch.uint8).view(20, 2)),
        "y": torch.arange(20),
    },
    "tensor": torch.arange(20),
    "tensors": TensorDataset(torch.arange(20), torch.arange(20)),
}


@pytest.mark.parametrize(
    "transform", [None, lambda batch: [batch, 1]], ids=["plain", "transformed"]
)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_dataloader_made_of_the_attributes_delivers_the_same_epoch(source, transform):
    """As accelerate's skip_first_batches makes one."""
    loader = FastLoader(source, 3, shuffle=True, transform=transform, seed=0)
    loader.set_epoch(2)
    names = "collate_fn", "num_workers", "prefetch_factor"
    settings = {name: getattr(loader, name) for name in names}
    other = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **settings)
    assert len(other) == len(loader)
    assert repr(list(other)) == repr(list(loader))


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize("settings", [{}, {"prefetch_factor": 2}, {"sampler": range(19, -1, -1)}])
def test_accelerate_skips_the_first_batches(settings):
    from accelerate import skip_first_batches

    loader = FastLoader(
        SOURCES["tuple"],
        3,
        seed=0,
        **({"shuffle": True} | settings if "sampler" not in settings else settings),
    )
    loader.set_epoch(1)
    rest = [repr(batch) for batch in skip_first_batches(loader, 2)]
    assert rest == [repr(batch) for batch in loader][2:]


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_single_samples_and_batches_may_be_assigned(source):
    loader = FastLoader(source, 3)
    list(loader)
    for batch_size in (None, 4):
        loader.batch_size = batch_size
        expected = FastLoader(source, batch_size)
        assert len(loader) == len(expected)
        assert repr(list(loader)) == repr(list(expected))


SHOWN = [
    {},
    {"batch_size": 6, "drop_last": True},
    {"batch_size": None},
    {"batch_sampler": BatchSampler(range(20), 3, False)},
    {"num_workers": 2},
    {"num_workers": 2, "prefetch_factor": 5},
]


@pytest.mark.parametrize("settings", SHOWN, ids=lambda settings: "-".join(settings) or "none")
def test_attributes_are_shown_as_dataloader_shows_them(settings):
    ours, theirs = FastLoader(Numbers(), **settings), DataLoader(Numbers(), **settings)
    for name in ("batch_size", "drop_last", "num_workers", "prefetch_factor"):
        assert getattr(ours, name) == getattr(theirs, name)
    if theirs.batch_sampler is None:
        assert ours.batch_sampler is None
    else:
        for name in ("batch_size", "drop_last"):
            assert getattr(ours.batch_sampler, name) == getattr(theirs.batch_sampler, name)
        assert list(ours.batch_sampler.sampler) == list(theirs.batch_sampler.sampler)


OF_TWENTY = [Numbers(), torch.arange(20), TensorDataset(torch.arange(20))]


@pytest.mark.parametrize(
    "settings",
    [*SHOWN[:-1], {"shuffle": True}, {"sampler": [5, 3]}],
    ids=lambda settings: "-".join(settings) or "none",
)
@pytest.mark.parametrize("source", OF_TWENTY, ids=lambda source: type(source).__name__)
@pytest.mark.parametrize("seed", [None, 3])
def test_an_iterator_has_the_length_of_dataloaders(source, settings, seed):
    batches, theirs = (
        iter(FastLoader(source, seed=seed, **settings)),
        DataLoader(source, **settings),
    )
    assert len(batches) == len(iter(theirs)) == len(theirs)
    # It stays as the batches are delivered, as with DataLoader.
    assert len([*batches]) == len(batches) == len(theirs)


class Endless:
    """A sampler without a length."""

    def __iter__(self):
        return itertools.repeat(3)


@pytest.mark.parametrize("source", OF_TWENTY[:2], ids=lambda source: type(source).__name__)
def test_an_iterator_over_an_endless_sampler_has_no_length(source):
    for kind in (FastLoader, DataLoader):
        batches = iter(kind(source, sampler=Endless()))
        with pytest.raises(TypeError, match="has no len"):
            len(batches)
        assert len(next(batches)) in (1, 2)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


class Measured(Stream):
    def __len__(self) -> int:
        return 20


def test_an_iterator_over_a_stream_has_a_length_if_the_stream_has_one():
    batches = iter(FastLoader(Measured(), 8))
    assert [len(batches), *map(len, batches)] == [3, 8, 8, 4]
    batches = iter(FastLoader(Stream(), 8))
    with pytest.raises(TypeError, match="its IterableDataset has none"):
        len(batches)
    assert [*map(len, batches)] == [8, 8, 4]


@pytest.mark.parametrize("source", OF_TWENTY, ids=lambda source: type(source).__name__)
def test_an_epoch_that_was_closed_before_its_first_batch_has_ended(source):
    for seed in (None, 3):
        batches: Any = iter(FastLoader(source, 4, seed=seed))
        batches.close()
        assert list(batches) == []


@pytest.mark.parametrize("count", [0, 1])
def test_numbers_of_numpy_are_taken(count):
    settings: Any = {"num_workers": np.int64(count), "timeout": np.int32(60 * count)}
    loader = FastLoader(Numbers(), 4, **settings)
    assert type(loader.num_workers) is int
    assert repr(list(loader)) == repr(list(DataLoader(Numbers(), 4, **settings)))
    columns = FastLoader(torch.arange(9), 4, num_workers=np.int64(1))
    assert torch.cat(list(columns)).tolist() == [*range(9)]


def test_a_sampler_of_lists_may_be_assigned():
    loader = FastLoader(torch.arange(20), None)
    loader.sampler = BatchSampler(range(20), 8, drop_last=False)
    assert [len(batch) for batch in loader] == [8, 8, 4]
    loader.sampler = [3]
    assert list(loader) == [torch.tensor(3)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"shuffle": True}, {"batch_size": 3, "drop_last": True}, {"batch_sampler": [[1, 2]]}],
    ids=str,
)
def test_a_loader_has_the_sampler_that_a_dataloader_makes(settings):
    """Programs divide by its length."""
    drawn = []
    for kind in (FastLoader, DataLoader):
        torch.manual_seed(0)
        loader = kind(Numbers(), **settings)
        assert len(loader.sampler) == 20
        drawn.append(list(loader.sampler))
    assert drawn[0] == drawn[1]


def test_the_sampler_of_a_loader_without_one_has_the_indices_of_its_next_epoch():
    settings = {"shuffle": True, "seed": 7, "rank": 1, "world_size": 3}
    loader = FastLoader(torch.arange(20), 3, **settings)
    for _ in range(2):
        indices = list(loader.sampler)
        assert len(loader.sampler) == len(indices) == 7
        assert torch.cat(list(loader)).tolist() == indices
