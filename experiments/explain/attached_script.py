"""A training script that does not import fastloop. It trains an epoch for each line that it reads.

python experiments/explain/attached_script.py images|batches <workers> <samples>

Prints the CPU seconds of its start, and of each epoch the seconds, and the CPU seconds of all its
processes.
"""

import resource
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

SIZE, BATCH_SIZE = 28, 64


class Clothes(Dataset):
    """Small images of bytes, mirrored at random and normalized, as in common examples."""

    def __init__(self, count: int) -> None:
        draws = np.random.default_rng(0)
        self.images = draws.integers(256, size=(count, SIZE, SIZE), dtype=np.uint8)
        self.labels = draws.integers(10, size=count)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).float().div_(255).sub_(0.5)
        return image.flip(1) if index % 2 else image, int(self.labels[index])


class Batches(Dataset):
    """Batches that are ready in memory. A loop over a DataLoader can't be cheaper."""

    def __init__(self, count: int) -> None:
        self.images = torch.rand(count // BATCH_SIZE, BATCH_SIZE, SIZE, SIZE)
        self.labels = torch.randint(10, (count // BATCH_SIZE, BATCH_SIZE))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def main(kind: str, workers: int, samples: int) -> None:
    torch.set_num_threads(1)
    dataset, batch_size = {"images": (Clothes, BATCH_SIZE), "batches": (Batches, None)}[kind]
    loader = DataLoader(dataset(samples), batch_size, shuffle=True, num_workers=workers)
    layers = torch.nn.Linear(SIZE * SIZE, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    print(cpu_seconds(), flush=True)
    for _ in sys.stdin:
        start_s, start_cpu_s = time.perf_counter(), cpu_seconds()
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        print(time.perf_counter() - start_s, cpu_seconds() - start_cpu_s, flush=True)


def cpu_seconds() -> float:
    """CPU seconds of this process and of its workers, which have ended with their epoch."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
