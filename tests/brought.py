"""What a user might bring: Datasets, loaders, and a few that are wrong. Imported by its name."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

import torch
from tensordict import TensorDict, tensorclass
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastloop.types import option

COUNT = 40


class Squares(Dataset):
    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), float(index * index)), index % 4


class Named(Squares):
    """Samples with names, in the order of HuggingFace's: that of the label sorts first."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        data, label = super().__getitem__(index)
        return {"pixel_values": data, "labels": label}


class Tells(Squares):
    """An option: it has the two methods."""

    label, num_classes, uint8_scale = "tells", 4, None

    def fetch(self) -> str:
        return "tells-1"

    def open(self) -> Squares:
        return Squares(self.count)


class Random(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(2, 3), index % 4


class Raises(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 17:
            raise ValueError("boom\nand more")
        return super().__getitem__(index)


class Shades(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), index) / 255, index % 4


class Halves(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), index).bfloat16(), index % 4


class Unlabelled(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 3), float(index)), index % 4 - 1


class RaisesInWorkers(Raises):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index if get_worker_info() else min(index, 16))


class Held(Squares):
    """Slow enough for several processes, into which its function does not travel."""

    def __init__(self) -> None:
        super().__init__(2500)
        self.transform = lambda index: index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return super().__getitem__(self.transform(index))


class Busy(Squares):
    """An epoch takes 0.64 s of the CPU of the processes that decode: 160 samples, 4 ms each."""

    count, CPU_S = 160, 0.004

    def __init__(self) -> None:
        super().__init__(self.count)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.process_time() + self.CPU_S
        while time.process_time() < until:
            pass
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Squares())


class Endless:
    """A dataset without an end has no length."""

    def __getitem__(self, index: int) -> int:
        return index


def plain():
    return DataLoader(Squares(), batch_size=16, shuffle=True)


def make_loader(batch_size, num_workers=0, shuffle=True):
    return DataLoader(Squares(), batch_size, shuffle, num_workers=num_workers)


def generated(count=COUNT):
    rows = Squares(count)
    for start in range(0, count, 7):
        pairs = [rows[index] for index in range(start, min(start + 7, count))]
        yield torch.stack([data for data, _ in pairs]), torch.tensor([label for _, label in pairs])


def each_epoch(epoch):
    torch.manual_seed(epoch)
    return plain()


def from_epochs():
    return each_epoch


def over(dataset, sampler, batch_size, num_workers):
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers)


def listed():
    return list(generated())


@dataclass(frozen=True)
class Batch:
    label: torch.Tensor
    image: torch.Tensor


@tensorclass
class Rows:
    image: torch.Tensor
    label: torch.Tensor


def image_label():
    return [{"image": data, "label": labels} for data, labels in generated()]


def label_first():
    return [{"label": labels, "pixels": data} for data, labels in generated()]


def dataclasses():
    return [Batch(label=labels, image=data) for data, labels in generated()]


def tensorclasses():
    return [Rows(data, labels, batch_size=[len(labels)]) for data, labels in generated()]


def tensordicts():
    return [TensorDict(one, batch_size=[len(one["label"])]) for one in image_label()]


def nested_pairs():
    return [({"image": data}, [labels]) for data, labels in generated()]


def in_a_dict():
    return [{"batch": [labels, data]} for data, labels in generated()]


def only_x():
    return [{"x": data} for data, _ in generated()]


def with_index():
    return [{"image": data, "label": label, "index": label} for data, label in generated()]


def two_labels():
    return [{"ids": labels, "labels": labels} for _, labels in generated()]


def lists_of_labels():
    return [{"batch": [labels, labels]} for _, labels in generated()]


class Once:
    """Its `open` is not an option's."""

    def __iter__(self):
        return generated()

    def open(self):
        raise AssertionError


def relabelled():
    return [(data, (labels + 1) % 4) for data, labels in generated()]


def augmented():
    return ((data + torch.rand(1), labels) for data, labels in generated())


def nothing():
    return iter(())


def no_loader():
    return None


def forever():
    while True:
        yield from generated()


def on_and_on():
    for start in itertools.count(step=10):
        yield torch.arange(start, start + 10).float().view(10, 1), torch.zeros(10).long()


def words():
    return [("a", "b")]


def arrays():
    return [(data.numpy(), labels.numpy()) for data, labels in generated()]


def raising():
    return DataLoader(Raises(), batch_size=16, num_workers=2)


def fails():
    raise FileNotFoundError("no such data")


@option
class MyLoader:
    """A loader by the Protocol."""

    store = None

    def open(self, prepared, plan):
        from fastloop.torch_loader import torch_epochs

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


def make_net() -> torch.nn.Module:
    return Net((2, 3), 4)


NET = make_net()
