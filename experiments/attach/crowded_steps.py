"""How much do a step in several of torch's threads, and processes that load samples beside it, slow
each other down?"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy
from torch.utils.data import default_collate

Step = Callable[[], object]
BATCH = 128


def load_for_ever(batches: Synchronized) -> None:
    """Make batches of converted images, as a worker does, and count them."""
    torch.set_num_threads(1)
    image = torch.randint(256, (28, 28), dtype=torch.uint8).numpy()
    while True:
        default_collate([torch.from_numpy(image).float().div(255)[None] for _ in range(BATCH)])
        batches.value += 1


def make_dense() -> Step:
    """Training of a small autoencoder."""
    layers = [nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 20), nn.Linear(20, 784), nn.Sigmoid()]
    model, images = nn.Sequential(*layers), torch.rand(BATCH, 784)
    return _train(model, lambda: binary_cross_entropy(model(images), images))


def make_convolution() -> Step:
    """Training of a small network of convolutions."""
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(9216, 10))
    images, labels = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))
    return _train(model, lambda: cross_entropy(model(images), labels))


def make_product() -> Step:
    """One large product of matrices."""
    matrix = torch.rand(1500, 1500)
    return lambda: matrix @ matrix


def make_recurrent() -> Step:
    """Training of a small LSTM, which has many short operations."""
    model, words = nn.LSTM(200, 200, 2), torch.rand(35, 20, 200)
    return _train(model, lambda: torch.sum(model(words)[0]))


def _train(model: nn.Module, find_loss: Callable[[], torch.Tensor]) -> Step:
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        find_loss().backward()
        optimizer.step()

    return step


STEPS = {
    "dense": make_dense,
    "convolution": make_convolution,
    "product": make_product,
    "recurrent": make_recurrent,
}


def measure_speeds(step: Step, num_readers: int, seconds: float) -> tuple[float, list[float]]:
    """Steps a second, and the batches a second of each of the processes that load beside them."""
    counts = [multiprocessing.Value("q", 0, lock=False) for _ in range(num_readers)]
    readers = [multiprocessing.Process(target=load_for_ever, args=[each]) for each in counts]
    for reader in readers:
        reader.start()
    try:
        while not all(each.value > 2 for each in counts):
            time.sleep(0.01)
        before = [each.value for each in counts]
        begin_s, steps = time.perf_counter(), 0
        while time.perf_counter() - begin_s < seconds:
            step()
            steps += 1
        spent_s = time.perf_counter() - begin_s
        made = [each.value - first for each, first in zip(counts, before, strict=True)]
    finally:
        for reader in readers:
            reader.kill()
            reader.join()
    return steps / spent_s, [each / spent_s for each in made]


def main() -> None:
    """Print a row for each step, number of threads and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each measurement")
    seconds = parser.parse_args().seconds
    multiprocessing.set_start_method("spawn")
    numbers = (torch.get_num_threads(), 1)
    _, (rate, *_) = measure_speeds(lambda: time.sleep(0.01), 1, seconds)
    print(f"{'step':12} threads  processes  speed of the step  speed of each process")
    for name, make in STEPS.items():
        for threads in numbers:
            torch.set_num_threads(threads)
            step = make()
            for _ in range(5):
                step()
            alone, _ = measure_speeds(step, 0, seconds)
            for num_readers in (1, 2):
                speed, made = measure_speeds(step, num_readers, seconds)
                speeds = " ".join(f"{each / rate:.2f}" for each in made)
                print(f"{name:12} {threads:7}  {num_readers:9}  {speed / alone:17.2f}  {speeds}")


if __name__ == "__main__":
    main()
