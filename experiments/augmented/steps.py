"""How long does a training step wait for augmented photographs, with each library's loop? See
README.md.

python -m experiments.augmented.steps [rounds [network ...]]
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torchvision

from experiments.augmented.loops import BATCH_SIZE, READERS, SIDE, make_loop
from experiments.augmented.other_loops import OTHER_LOOPS
from experiments.augmented.photographs import write_photographs
from experiments.peers.lines import Line, figure, ratio_by_round, table, times
from experiments.peers.processes import measure_in_rounds, processes
from fastloop.core.spans import now_ns, seconds_between

NUM_FILES = 300
NO_STEP = "no step"
MODELS = {"mobilenet_v3_small": 5, "resnet18": 2}
"""Name of a network -> number of batches in an epoch."""
FASTLOADER, BY_SAMPLES = "FastLoader", "SPDL"
"""The loop to which the others are compared, and one that is left out because it ends an epoch 0.1
s late: SPDL by samples."""


@dataclass(frozen=True)
class EpochTimes:
    """Milliseconds per image."""

    whole: float
    waiting: float
    """The part of this time that is spent in next()."""


@cache
def warm_loop(name: str, paths: tuple[str, ...]) -> Iterable[Any]:
    """The loop that a process uses in all rounds."""
    return OTHER_LOOPS[name](paths) if name in OTHER_LOOPS else make_loop(name, paths)


@cache
def make_step(model: str) -> Callable[[torch.Tensor], Any]:
    """A step of SGD of a network on one thread; NO_STEP does nothing."""
    if model == NO_STEP:
        return lambda images: images
    network = getattr(torchvision.models, model)()
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    targets = torch.zeros(BATCH_SIZE, dtype=torch.int64)

    def step(images: torch.Tensor) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), targets[: len(images)]).backward()
        optimizer.step()

    return step


def measure_epoch(name: str, paths: tuple[str, ...], model: str) -> EpochTimes:
    """An epoch of the loop with a step on every batch."""
    loop, step = warm_loop(name, paths), make_step(model)
    torch.set_num_threads(1)
    start = last = now_ns()
    waiting_ns = 0
    for batch in loop:
        waiting_ns += now_ns() - last
        step(batch[0])
        last = now_ns()
    waiting_ns += now_ns() - last
    whole_ms = 1e3 * seconds_between(start, now_ns())
    return EpochTimes(whole_ms / len(paths), 1e-6 * waiting_ns / len(paths))


def check_loop(name: str, paths: tuple[str, ...]) -> str:
    """The reason why the loop can't run here; empty if its batches have the expected form."""
    try:
        batches = [_describe(batch[0]) for batch in warm_loop(name, paths)]
    # A library may raise any exception.
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    count = sum(size for size, _ in batches)
    if count != len(paths):
        return f"{count} images an epoch, not {len(paths)}"
    return next((reason for _, reason in batches if reason), "")


def _describe(images: torch.Tensor) -> tuple[int, str]:
    """The number of images in a batch, and a description of anything unexpected in it."""
    if tuple(images.shape[1:]) != (3, SIDE, SIDE) or images.dtype != torch.float32:
        return len(images), f"images of {images.dtype} and shape {tuple(images.shape)}"
    mean, std = float(images.mean()), float(images.std())
    is_normalized = abs(mean) < 1.5 and 0.5 < std < 2
    return len(images), "" if is_normalized else f"mean {mean:.2f}, standard deviation {std:.2f}"


def measure(num_rounds: int, model: str, num_batches: int) -> list[Line]:
    """The table's lines for a network."""
    names = [FASTLOADER, *READERS, *(name for name in OTHER_LOOPS if name != BY_SAMPLES)]
    with TemporaryDirectory() as folder, processes(names) as call:
        paths = tuple(write_photographs(Path(folder), min(NUM_FILES, num_batches * BATCH_SIZE)))
        paths *= num_batches * BATCH_SIZE // len(paths)
        reasons = {name: call[name](check_loop, name, paths) for name in names}
        able = [name for name in names if not reasons[name]]
        calls = {name: partial(call[name], measure_epoch, name, paths, model) for name in able}
        took = measure_in_rounds(num_rounds, calls)
    lines = [_compare(name, took, model) for name in able]
    return lines + [Line(name, f"can't run: {reasons[name]}") for name in names if reasons[name]]


def _compare(name: str, took: dict[str, list[EpochTimes]], model: str) -> Line:
    part = "whole" if model == NO_STEP else "waiting"
    values = {each: [getattr(one, part) for one in took[each]] for each in (name, FASTLOADER)}
    label = f"{name}, {'an image' if model == NO_STEP else f'waiting of {model}, an image'}"
    if name == FASTLOADER:
        return Line(label, figure(values[name], "ms"))
    ratio = ratio_by_round(values[name], values[FASTLOADER])
    return Line(label, figure(values[name], "ms"), times(ratio))


def parse(arguments: Sequence[str]) -> tuple[int, dict[str, int]]:
    """The number of rounds, and the number of batches in an epoch of each network: of the networks
    that the arguments name, or of all."""
    num_rounds, *names = arguments or ("5",)
    tables = {NO_STEP: 20, **MODELS}
    if unknown := [name for name in names if name not in tables]:
        sys.exit(f"{unknown[0]!r}: allowed are {', '.join(map(repr, tables))}")
    return int(num_rounds), {name: tables[name] for name in names or tables}


def main() -> None:
    """Print the table of each network."""
    num_rounds, tables = parse(sys.argv[1:])
    for model, num_batches in tables.items():
        print(f"{model}\n{table(measure(num_rounds, model, num_batches))}\n", flush=True)


if __name__ == "__main__":
    main()
