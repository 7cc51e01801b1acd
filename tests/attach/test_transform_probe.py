"""The times of a dataset's transforms: the script's objects stay as they are."""

from __future__ import annotations

import os
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from commands import run_fastloop, run_script

from fastloop.core.parts import Part
from fastloop.explain.attach.recorded_processes import open_script_log
from fastloop.explain.attach.transform_probe import time_transforms

USES = """
import copy, pickle, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Double:
    def __init__(self):
        self.strength = 2.0

    def __call__(self, transform, **named):
        return {"image": transform * self.strength}

class Steps(torch.nn.Sequential):
    def forward(self, image):
        return super().forward(image)

class Samples(Dataset):
    def __init__(self):
        self.transform = DOUBLE
        self.transforms = Steps(torch.nn.Identity(), torch.nn.Hardtanh(0, 50))

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 13:
            self.transform = Double()
            self.transform.strength = 1000.0
        if type(self.transform) is not Double or not isinstance(self.transform, Double):
            raise SystemExit("another type")
        if index < 13 and not self.transform is DOUBLE == self.transform:
            raise SystemExit("another object")
        self.transform.index = index
        copied = pickle.loads(pickle.dumps(copy.deepcopy(self.transform)))
        image = self.transform(transform=torch.tensor(float(index)))["image"]
        for step in self.transforms:
            image = step(image)
        return self.transforms(image), copied.index, len(self.transforms), self.transforms[0](index)

DOUBLE = Double()

if __name__ == "__main__":
    for workers in (0, 1):
        loader = DataLoader(Samples(), 4, num_workers=workers)
        print([[part.tolist() for part in batch] for batch in loader])
    print(Double.__call__.__qualname__, "__call__" in vars(Steps), DOUBLE.index)
"""


@pytest.mark.heavy
def test_script_may_use_its_transforms_in_any_way(tmp_path):
    script = tmp_path / "uses.py"
    script.write_text(USES)
    attached = run_fastloop(str(script), cwd=tmp_path, command="attach")
    plain = run_script(script, cwd=tmp_path)
    assert plain.stdout.endswith("Double.__call__ False 12\n")
    assert attached.stdout == plain.stdout, attached.stderr


class Add:
    """A transform that may call another one."""

    def __init__(self, inner=None):
        self.inner = inner

    def __call__(self, number):
        return self.inner(number) + 1 if self.inner else number + 1


class AddLater(Add):
    """Inherits the method by which it is called."""


def count_calls(log, process_id=None):
    process_id = process_id or os.getpid()
    return [e.part for e in log.read() if e.process_id == process_id].count(Part.TRANSFORM)


@pytest.fixture
def log(tmp_path):
    log = open_script_log(str(tmp_path))
    yield log
    log.close()


@pytest.mark.parametrize("kind", [Add, AddLater])
def test_calls_of_the_transform_are_recorded_meanwhile(log, kind):
    before, transform = dict(vars(kind)), kind(kind())
    dataset = SimpleNamespace(dataset=SimpleNamespace(transform=transform))
    with time_transforms(dataset, log):
        assert dataset.dataset.transform is transform
        assert transform(1) == 3
        assert kind()(1) == 2, "an object that is no transform of the dataset"
        assert count_calls(log) == 1
        dataset.dataset.transform = other = kind()
        assert other(1) == 2
        assert count_calls(log) == 2
    assert transform(1) == 3
    assert count_calls(log) == 2
    assert dict(vars(kind)) == before


def test_transform_inside_of_another_one_is_a_part_of_its_time(log):
    inner = AddLater()
    dataset = SimpleNamespace(transform=inner, transforms=Add(inner))
    with time_transforms(dataset, log):
        assert dataset.transforms(1) == 3
    assert count_calls(log) == 1


def test_time_is_recorded_again_after_an_error(log):
    dataset = SimpleNamespace(transform=Add())
    with time_transforms(dataset, log):
        with pytest.raises(TypeError):
            dataset.transform("text")
        assert count_calls(log) == 0
        dataset.transform(1)
    assert count_calls(log) == 1


@pytest.mark.parametrize("transform", [lambda number: number + 1, torch.nn.Identity(), abs, int])
def test_functions_and_objects_of_torch_are_not_timed(log, transform):
    before = torch.nn.Identity.__call__
    dataset = SimpleNamespace(transform=transform)
    with time_transforms(dataset, log):
        assert torch.nn.Identity.__call__ is before
        assert dataset.transform(1) == transform(1)
    assert count_calls(log) == 0


def test_method_that_the_script_sets_meanwhile_stays(log):
    class Changed(Add):
        pass

    dataset = SimpleNamespace(transform=Changed())
    with time_transforms(dataset, log):
        Changed.__call__ = lambda self, number: number + 10
        assert dataset.transform(1) == 11
    assert dataset.transform(1) == 11


def test_calls_and_batches_of_other_threads_are_not_timed(log):
    dataset = SimpleNamespace(transform=Add())

    def make_batch():
        with time_transforms(dataset, log):
            dataset.transform(1)

    with time_transforms(dataset, log):
        for target in (lambda: dataset.transform(1), make_batch):
            thread = Thread(target=target)
            thread.start()
            thread.join()
        assert count_calls(log) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_does_not_record_its_calls(log):
    dataset = SimpleNamespace(transform=Add())
    with time_transforms(dataset, log):
        process_id = os.fork()
        if not process_id:
            dataset.transform(1)
            os._exit(0)
        os.waitpid(process_id, 0)
    assert count_calls(log, process_id) == 0
