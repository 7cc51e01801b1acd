"""The stages of a pipeline, one of which may be slow: dataset, order, transform, collate, model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from experiments.explain.delays import Delay, Kind

FEATURES = 16
CLASSES = 4
UNEVEN_EVERY = 8

Sample = tuple[torch.Tensor, int]


class Samples(Dataset[Sample]):
    """Samples of which every `every`-th one takes `seconds`, and the others no time.

    start_s: additional time of the first sample in each worker process, as if a file were opened
    there.
    """

    def __init__(
        self,
        count: int,
        kind: Kind = "sleep",
        seconds: float = 0.0,
        every: int = 1,
        start_s: float = 0.0,
    ) -> None:
        self.count, self.every = count, every
        self.delay, self.start = Delay(kind, seconds), Delay("sleep", start_s)
        self.started_in = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        if get_worker_info() and self.started_in != os.getpid():
            self.started_in = os.getpid()
            self.start()
        if (index + 1) % self.every == 0:
            self.delay()
        return torch.full((FEATURES,), float(index)), index % CLASSES


class LargeBatches(Dataset[Any]):
    """Large batches that exist already, so that only their hand-off takes time."""

    def __init__(self, count: int, features: int) -> None:
        self.count, self.features = count, features

    def __len__(self) -> int:
        return self.count

    @cached_property
    def rows(self) -> np.ndarray:
        """One row per sample; its first value is the sample's index."""
        rows = np.zeros((self.count, self.features), np.float32)
        rows[:, 0] = np.arange(self.count)
        return rows

    def __getitem__(self, index: int) -> Sample:
        return torch.from_numpy(self.rows[index]), index % CLASSES

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch as views of the rows. The tensors are new, because a worker moves the tensors
        that it sends to shared memory."""
        rows = self.rows[indices[0] : indices[-1] + 1]
        # Indices may be no range, for example if the first and the last sample are looked at.
        if len(rows) != len(indices):
            rows = self.rows[indices]
        return torch.from_numpy(rows), torch.tensor([index % CLASSES for index in indices])

    def __getstate__(self) -> dict[str, int]:
        return {"count": self.count, "features": self.features}


class SlowOrder:
    """The order 0, 1, 2, ..., which takes `seconds` to draw, like an order by lengths."""

    complete: ClassVar[bool] = True

    def __init__(self, seconds: float) -> None:
        self.delay = Delay("sleep", seconds)

    def length(self, num_samples: int) -> int:
        """The number of samples of an epoch."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:  # noqa: ARG002
        """Yield all indices as one piece."""
        self.delay()
        yield torch.arange(num_samples)


class SlowTransform:
    """Returns the sample itself, after `seconds`."""

    def __init__(self, kind: Kind, seconds: float) -> None:
        self.delay = Delay(kind, seconds)

    def __call__(self, sample: Sample) -> Sample:
        self.delay()
        return sample


class SlowCollate:
    """torch's default collate, after `seconds` for each of the samples."""

    def __init__(self, kind: Kind, seconds: float) -> None:
        self.delay = Delay(kind, seconds)

    def __call__(self, samples: list[Sample]) -> list[torch.Tensor]:
        for _ in samples:
            self.delay()
        return default_collate(samples)


class Net(torch.nn.Module):
    """A small network with a forward pass of `seconds`. If it sleeps, it stands for a device that
    computes while the loop waits for it."""

    def __init__(self, input_shape: Any, num_classes: int, kind: Kind, seconds: float) -> None:  # noqa: ARG002
        super().__init__()
        self.delay, self.layer = Delay(kind, seconds), torch.nn.Linear(FEATURES, num_classes)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs, after the delay."""
        self.delay()
        return self.layer(batch[:, :FEATURES])


class WideNet(torch.nn.Module):
    """A network of wide layers. Every UNEVEN_EVERY-th forward pass takes `uneven` times as long."""

    def __init__(self, input_shape: Any, num_classes: int, width: int, uneven: int) -> None:  # noqa: ARG002
        super().__init__()
        self.uneven, self.count = uneven, 0
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, num_classes),
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs; in an uneven pass, the mean of several equal ones."""
        self.count += 1
        times = self.uneven if self.count % UNEVEN_EVERY == 0 else 1
        outputs = [self.layers(batch) for _ in range(times)]
        return torch.stack(outputs).mean(0)
