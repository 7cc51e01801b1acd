"""Datasets, loaders and models of a user, some of them invalid, for `_target_=my_code.<name>`."""

from __future__ import annotations

import itertools
import math
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from tensordict import TensorDict, tensorclass
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    default_collate,
    get_worker_info,
)

from fastloop.core.types import option

COUNT = 40


class Squares(Dataset):
    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), float(index * index)), index % 4


class NotedSquares(Squares):
    """Notes each index that is read in this process."""

    noted: ClassVar[list[int]] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.noted.append(index)
        return super().__getitem__(index)


class TorchThreads(Squares):
    """Torch's number of threads in the process that reads the sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(torch.get_num_threads()), index % 4


class Recordings(Squares):
    """A Dataset with an argument that ends like one of fastloop's own settings."""

    def __init__(self, num_trials: int) -> None:
        super().__init__(num_trials)


class DictSamples(Squares):
    """Samples as dicts with HuggingFace's keys; the label's key sorts first."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        data, label = super().__getitem__(index)
        return {"pixel_values": data, "labels": label}


class Versions(Squares):
    """A Dataset with an argument of the name of a setting of dataset=custom."""

    def __init__(self, version: int) -> None:
        super().__init__(version)


class Clips(Squares):
    """Sounds of several lengths, as dicts."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        return {"sound": torch.full((1 + index % 7, 2), float(index)), "label": index % 4}


class TokenLists(Squares):
    """Lists of numbers, as tokenizers return them."""

    def __getitem__(self, index: int) -> dict[str, list[int] | int]:
        return {"ids": [index] * (2 + index % 3), "label": index % 4}


class Uneven(Squares):
    """Samples of several kinds, which no padding makes alike."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(2, 3 + index % 2), index % 4


class Numbers(Squares):
    """Samples without a dimension."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(float(index)), index % 4


class Words(Squares):
    """Texts."""

    def __getitem__(self, index: int) -> tuple[str, int]:
        return "a" * index, index % 4


class OptionDataset(Squares):
    """A Dataset that is a dataset option as well: it has fetch and open."""

    label, num_classes, uint8_scale = "squares", 4, None

    def fetch(self) -> str:
        return "squares-1"

    def open(self) -> Squares:
        return Squares(self.count)


class RandomSamples(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(2, 3), index % 4


class AugmentedSamples(Squares):
    """Drawn from the generators of torch, numpy and Python."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(2, 3) + np.random.rand() + random.random()
        return index + noise, index % 4


class UnseededSamples(Squares):
    """Drawn from a generator that no seed reaches."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.random.default_rng().random(3)), index % 4


class HalfRandomSamples(Squares):
    """Samples at odd indices come from a generator that no seed reaches."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = np.random.default_rng().random(3) if index % 2 else np.ones(3)
        return torch.from_numpy(index + noise), index % 4


class FailingSamples(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 17:
            raise ValueError("boom\nand more")
        return super().__getitem__(index)


class ScaledSamples(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), index) / 255, index % 4


class Bfloat16Samples(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), index).bfloat16(), index % 4


class NegativeLabels(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), float(index)), index % 4 - 1


class FailingInWorkers(FailingSamples):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index if get_worker_info() else min(index, 16))


class LeavingInWorkers(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if get_worker_info() and index == 17:
            os._exit(3)
        return super().__getitem__(index)


class HangingSamples(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 0:
            threading.Event().wait()
        return super().__getitem__(index)


class UnpicklableSamples(Squares):
    """Slow enough for several processes, but its lambda can't be pickled."""

    def __init__(self) -> None:
        super().__init__(2500)
        self.transform = lambda index: index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return super().__getitem__(self.transform(index))


class BusySamples(Squares):
    """160 samples of 4 ms CPU time each, 0.64 s per epoch, in the processes that decode."""

    count, CPU_S = 160, 0.004

    def __init__(self) -> None:
        super().__init__(self.count)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        end_s = time.process_time() + self.CPU_S
        while time.process_time() < end_s:
            pass
        return super().__getitem__(index)


class MissingSamples(Squares):
    """None, as for a broken file, in the place of samples 3, 10, 17, …"""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int] | None:
        return None if index % 7 == 3 else super().__getitem__(index)


class MissingData(Squares):
    """(index, None) in the place of samples 3, 10, 17, …"""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor | None]:
        return index, None if index % 7 == 3 else super().__getitem__(index)[0]


class FirstHoldsNone(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor | None, int]:
        return super().__getitem__(index) if index else (None, 0)


class Pictures(Squares):
    """PIL images, which default_collate can't stack."""

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (3, 2), (index, 0, 7)), index % 4


class BatchGetItems(Squares):
    """`__getitems__` indexes tensors once and returns a batch."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__(count)
        self.data, self.labels = torch.arange(3 * count).view(count, 3), torch.arange(count) % 4

    def __getitem__(self, index: int | list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self[indices]


class ListGetItems(BatchGetItems):
    """`__getitems__` returns a list of samples, as torch documents."""

    def __getitems__(self, indices: list[int]) -> list:
        return [self[index] for index in indices]


class OneTensor(BatchGetItems):
    """Samples that are one tensor, as of `Dataset(torch.arange(…))`."""

    def __getitem__(self, index: int | list[int]) -> torch.Tensor:
        return self.data[index]

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return self[indices]


class WrongGetItems(BatchGetItems):
    """`__getitems__` returns other samples than `__getitem__`."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[indices], self.labels[indices].flip(0)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Squares())


class Endless:
    """A dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index


def drop_missing(samples):
    return default_collate([sample for sample in samples if sample is not None])


def drop_missing_data(samples):
    samples = [(index, data) for index, data in samples if data is not None]
    return default_collate(samples) if samples else (None, None)


def drop_class(samples, label):
    kept = [sample for sample in samples if sample[1] != label]
    return default_collate(kept) if kept else None


def drop_last(samples):
    return default_collate(samples[: max(1, len(samples) - 1)])


def as_uint8(samples):
    images = torch.stack([torch.from_numpy(np.array(image)) for image, _ in samples])
    return images, torch.tensor([label for _, label in samples])


def repeat_each(samples):
    return default_collate([sample for sample in samples for _ in range(2)])


def pad_clips(samples):
    sounds = [sample["sound"] for sample in samples]
    return torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True)


def count_letters(samples):
    pairs = [(len(text), label) for text, label in samples]
    return torch.tensor(pairs).unbind(1)


def identity(batch):
    return batch


def negate(sample):
    return -sample[0], sample[1]


def needs_gpu(batch):
    if not batch[0].is_cuda:
        raise ValueError("the batch is not on a GPU")
    return batch


def make_scale(factor):
    return Scale(factor)


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, sample):
        return sample[0] * self.factor, sample[1]


def plain():
    return DataLoader(Squares(), batch_size=16, shuffle=True)


def make_loader(batch_size, num_workers=0, shuffle=True):
    return DataLoader(Squares(), batch_size, shuffle, num_workers=num_workers)


def generate_batches(count=COUNT):
    rows = Squares(count)
    for start in range(0, count, 7):
        pairs = [rows[index] for index in range(start, min(start + 7, count))]
        yield torch.stack([data for data, _ in pairs]), torch.tensor([label for _, label in pairs])


def each_epoch(epoch):
    torch.manual_seed(epoch)
    return plain()


def from_epochs():
    return each_epoch


def with_sampler(dataset, sampler, batch_size, num_workers):
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers)


def without_last(dataset, sampler, batch_size):
    """Delivers the first sample a second time in the place of the last."""
    indices = [*sampler]
    return DataLoader(dataset, batch_size, sampler=[*indices[:-1], indices[0]])


def with_collate(dataset, sampler, batch_size, collate_fn=None):
    return DataLoader(dataset, batch_size, sampler=sampler, collate_fn=collate_fn)


def list_batches():
    return list(generate_batches())


@dataclass(frozen=True)
class Batch:
    label: torch.Tensor
    image: torch.Tensor


@tensorclass
class Rows:
    image: torch.Tensor
    label: torch.Tensor


def image_label():
    return [{"image": data, "label": labels} for data, labels in generate_batches()]


def label_first():
    return [{"label": labels, "pixels": data} for data, labels in generate_batches()]


def dataclasses():
    return [Batch(label=labels, image=data) for data, labels in generate_batches()]


def tensorclasses():
    return [Rows(data, labels, batch_size=[len(labels)]) for data, labels in generate_batches()]


def tensordicts():
    return [TensorDict(batch, batch_size=[len(batch["label"])]) for batch in image_label()]


def nested_pairs():
    return [({"image": data}, [labels]) for data, labels in generate_batches()]


def nested_dict():
    return [{"batch": [labels, data]} for data, labels in generate_batches()]


def only_x():
    return [{"x": data} for data, _ in generate_batches()]


def with_index():
    return [{"image": data, "label": label, "index": label} for data, label in generate_batches()]


def two_labels():
    return [{"ids": labels, "labels": labels} for _, labels in generate_batches()]


def lists_of_labels():
    return [{"batch": [labels, labels]} for _, labels in generate_batches()]


class IterableWithOpen:
    """An iterable with an unrelated method `open`."""

    def __iter__(self):
        return generate_batches()

    def open(self):
        raise AssertionError


def shift_labels():
    return [(data, (labels + 1) % 4) for data, labels in generate_batches()]


def add_noise():
    return ((data + torch.rand(1), labels) for data, labels in generate_batches())


def nothing():
    return iter(())


def no_loader():
    return None


def forever():
    while True:
        yield from generate_batches()


def endless_labels():
    for start in itertools.count(step=10):
        yield torch.arange(start, start + 10).float().view(10, 1), torch.zeros(10).long()


def words():
    return [("a", "b")]


def arrays():
    return [(data.numpy(), labels.numpy()) for data, labels in generate_batches()]


def failing_workers():
    return DataLoader(FailingSamples(), batch_size=16, num_workers=2)


def raise_error():
    raise FileNotFoundError("no such data")


@option
class MyLoader:
    """A loader option that follows the Protocol."""

    store = None

    def open(self, prepared, plan):
        from fastloop.data.torch_epochs import torch_epochs

        return torch_epochs(prepared.dataset.open(), plan)


LOADER = DataLoader(Squares(), batch_size=16)
SAMPLES = [(torch.tensor([float(index)]), 0) for index in range(5)]
SPENT = iter(())
NUMBER = 3


class Net(torch.nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(math.prod(input_shape), width),
            torch.nn.Linear(width, num_classes),
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch)


class HiddenNet(Net):
    """A module with an argument of the name of a setting of model=toynet."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, hidden: int = 8) -> None:
        super().__init__(input_shape, num_classes, hidden)


class WidthNet(Net):
    """A module without an argument of the name of a setting of model=toynet."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 8) -> None:
        super().__init__(input_shape, num_classes, width)


class AnyNet(Net):
    """A module that takes arguments of any name."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, **settings: int) -> None:
        super().__init__(input_shape, num_classes, **settings)


class WideNet(Net):
    """A module with an argument that has no default."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, hidden: int) -> None:
        super().__init__(input_shape, num_classes, hidden)


class ComputedNet(Net):
    """A module with a computed tensor, which torch does not copy."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.computed = self.layers[1].weight.norm()


def make_net() -> torch.nn.Module:
    return Net((2, 3), 4)


NET = make_net()


class SharedNet(torch.nn.Module):
    """A module of which each instance has the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = NET

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch)
