"""The facts that the probe writes about a script's DataLoader."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from commands import run_script
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms

from fastloop.explain.attach.by_identity import ByIdentity
from fastloop.explain.attach.loader_facts import describe_loader, find_rank
from fastloop.explain.attach.loader_places import ANY_NAME, names_of_arguments
from fastloop.explain.attach.loader_registry import LoaderRegistry
from fastloop.explain.attach.recorded_processes import open_script_log


class Samples(Dataset):
    pass


class Own(DataLoader):
    def __init__(self, samples, size):
        super().__init__(samples, batch_size=size)


class Named(DataLoader):
    def __init__(self, samples, size, **named):
        super().__init__(samples, batch_size=size, **named)


class Passing(DataLoader):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)


@dataclass
class Unhashable(DataLoader):
    """Two of the same size are equal, and none can be a key of a dictionary."""

    size: int

    def __post_init__(self):
        super().__init__([1.0, 2.0, 3.0], batch_size=self.size)


def test_loaders_need_not_be_hashable(tmp_path):
    registry = LoaderRegistry(open_script_log(str(tmp_path)))
    first, second = Unhashable(2), Unhashable(2)
    assert first == second
    numbers = [registry.find_state(each).number for each in (first, second, first)]
    assert numbers[0] == numbers[2] != numbers[1]


def test_datasets_that_follow_each_other_at_one_place_in_memory_are_told_apart(tmp_path):
    registry = LoaderRegistry(open_script_log(str(tmp_path)))
    places, numbers = [], []
    for _ in range(50):
        dataset = Samples()
        places.append(id(dataset))
        numbers.append(registry.number_dataset(dataset))
        assert registry.number_dataset(dataset) == numbers[-1]
        del dataset
    assert len({*places}) < 50
    assert len({*numbers}) == 50
    values = [1.0, 2.0]  # a list, which can't be followed
    assert registry.number_dataset(values) == registry.number_dataset(values) not in numbers


def test_value_is_forgotten_with_its_object():
    values: ByIdentity[str] = ByIdentity()
    loader = Unhashable(2)
    values[loader] = "known"
    assert (values.get(loader), loader in values, len(values)) == ("known", True, 1)
    assert (values.get(Unhashable(2)), len(values)) == (None, 1)
    del loader
    gc.collect()
    assert len(values) == 0


def test_numbers_of_numpy_are_written_as_numbers():
    loader = DataLoader([1, 2, 3], batch_size=2, num_workers=np.int64(1))
    facts = json.loads(json.dumps(describe_loader(loader)))
    assert (facts["num_workers"], facts["batch_size"]) == (1, 2)
    assert facts["takes"] is None


@pytest.mark.parametrize(
    ("make", "is_native"),
    [
        (lambda: torch.zeros(4, 2), True),
        (lambda: torch.zeros(4, 2, requires_grad=True), False),
        (lambda: torch.zeros(4, 2, device="meta"), False),
        (lambda: torch.zeros(4, 2).to_sparse(), False),
    ],
    ids=["plain", "with a gradient", "meta", "sparse"],
)
def test_tensors_are_rows_if_they_are_plain_memory(make, is_native):
    facts = describe_loader(DataLoader(TensorDataset(make()), 2))
    assert (facts["is_native"], facts["is_in_memory"]) == (is_native, is_native)


@pytest.mark.parametrize(
    ("steps", "is_in_memory", "is_resized"),
    [([], True, False), ([transforms.Resize(32)], False, True), ([abs], False, False)],
    ids=["rows", "resized", "python"],
)
def test_images_in_memory_are_rows_unless_they_are_resized(steps, is_in_memory, is_resized):
    dataset = datasets.MNIST.__new__(datasets.MNIST)
    dataset.__dict__.update(
        data=torch.zeros(4, 28, 28, dtype=torch.uint8),
        targets=torch.zeros(4, dtype=torch.int64),
        transform=transforms.Compose([*steps, transforms.ToTensor()]),
        target_transform=None,
        root=".",
    )
    facts = describe_loader(DataLoader(dataset, 2))
    assert (facts["is_in_memory"], facts["is_resized"]) == (is_in_memory, is_resized)


@pytest.mark.parametrize(
    ("kind", "names"),
    [(Own, ["samples", "size"]), (Named, ["samples", "size", ANY_NAME]), (Passing, None)],
)
def test_arguments_of_a_derived_class_are_known(kind, names):
    assert names_of_arguments(kind) == names
    assert describe_loader(kind([1, 2, 3], 2))["takes"] == names


def test_script_may_set_a_start_method_after_a_loop(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from torch.utils.data import DataLoader\n"
        "from fastloop.explain.attach.loader_facts import describe_loader\n"
        "default = multiprocessing.get_all_start_methods()[0]\n"
        "assert describe_loader(DataLoader([1, 2]))['start_method'] == default\n"
        "multiprocessing.set_start_method('spawn')\n"
        "assert describe_loader(DataLoader([1, 2]))['start_method'] == 'spawn'\n"
        "loader = DataLoader([1, 2], num_workers=1, multiprocessing_context='forkserver')\n"
        "assert describe_loader(loader)['start_method'] == 'forkserver'\n"
    )
    process = run_script(script, cwd=tmp_path)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("text", "rank"), [("3", "3"), ("03", "3"), ("", None), ("main", None), ("-1", None)]
)
def test_rank_is_a_number(monkeypatch, text, rank):
    monkeypatch.setenv("RANK", text)
    assert find_rank() == rank
