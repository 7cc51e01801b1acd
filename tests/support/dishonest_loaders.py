"""Loaders of a user that are faster because they deliver less, or elsewhere than in the window.

Each takes the dataset and its order, for `loader._target_=dishonest_loaders.<name>`. `EPOCHS` is
the number of timed epochs, by which some of them know the window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

EPOCHS = 2


def make_batch(dataset, indices) -> list[torch.Tensor]:
    return default_collate([dataset[index] for index in indices])


def split(indices, batch_size: int) -> Iterator[list[int]]:
    for start in range(0, len(indices), batch_size):
        yield indices[start : start + batch_size]


def indices_of(sampler, epoch: int) -> list[int]:
    sampler.epoch = epoch
    return list(sampler)


def honest(dataset, sampler, batch_size) -> Callable[[int], Any]:
    def epochs(epoch):
        for indices in split(indices_of(sampler, epoch), batch_size):
            yield make_batch(dataset, indices)

    return epochs


def half_in_the_window(dataset, sampler, batch_size) -> Callable[[int], Any]:
    def epochs(epoch):
        indices = indices_of(sampler, epoch)
        for part in split(indices[: len(indices) // (1 + (epoch < EPOCHS))], batch_size):
            yield make_batch(dataset, part)

    return epochs


def exhausted(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """A generator for each epoch, which is used up when the epoch is asked for again."""
    started, make = {}, honest(dataset, sampler, batch_size)
    return lambda epoch: started.setdefault(epoch, make(epoch))


def cached_in_the_window(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """As many samples as asked for, of which all in the window are those of one batch."""
    make, kept = honest(dataset, sampler, batch_size), []

    def epochs(epoch):
        for batch in make(epoch):
            kept[:] = kept or [batch]
            yield kept[0] if epoch < EPOCHS and len(batch[0]) == len(kept[0][0]) else batch

    return epochs


def alternating_labels(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """Every second call reverses the labels of each batch."""
    make, calls = honest(dataset, sampler, batch_size), []

    def epochs(epoch):
        calls.append(epoch)
        for source, targets in make(epoch):
            yield source, targets.flip(0) if len(calls) % 2 == 0 else targets

    return epochs


def stored_order(dataset, sampler, batch_size) -> Callable[[int], Any]:
    return lambda _: (
        make_batch(dataset, part) for part in split(list(range(len(sampler))), batch_size)
    )


def same_order(dataset, sampler, batch_size) -> Callable[[int], Any]:
    return lambda _: honest(dataset, sampler, batch_size)(0)


def one_batch(dataset, sampler, batch_size) -> Callable[[int], Any]:
    return lambda epoch: [make_batch(dataset, indices_of(sampler, epoch))]


def small_batches(dataset, sampler, batch_size) -> Callable[[int], Any]:
    return honest(dataset, sampler, batch_size // 2)


def filled_late(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """Each batch is filled when the next one is asked for."""

    def epochs(epoch):
        for source, targets in honest(dataset, sampler, batch_size)(epoch):
            late = torch.zeros_like(source)
            yield late, targets
            late.copy_(source)

    return epochs


def made_when_opened(dataset, sampler, batch_size) -> Callable[[int], Any]:
    make = honest(dataset, sampler, batch_size)
    ready = {epoch: list(make(epoch)) for epoch in range(10)}
    return lambda epoch: ready[epoch] if epoch in ready else make(epoch)


def works_between_windows(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """A thread that works while nothing is asked of the loader."""

    def work() -> None:
        while True:
            end = time.thread_time() + 0.01
            while time.thread_time() < end:
                pass

    threading.Thread(target=work, daemon=True).start()
    return honest(dataset, sampler, batch_size)


def whole_epochs(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """All samples, whatever part of the order is asked for."""

    def epochs(epoch):
        for indices in split(range(len(dataset)), batch_size):
            yield make_batch(dataset, indices)

    return epochs


def own_order(dataset, batch_size, shuffle) -> Callable[[int], Any]:
    """An honest loader that shuffles by itself."""

    def epochs(epoch):
        indices = torch.randperm(len(dataset)) if shuffle else torch.arange(len(dataset))
        for part in split(indices.tolist(), batch_size):
            yield make_batch(dataset, part)

    return epochs


def reads_between_windows(dataset, sampler, batch_size) -> Callable[[int], Any]:
    """Half a MiB is read every few milliseconds, which takes hardly any CPU time."""

    def read() -> None:
        with open(__file__, "rb", buffering=0) as file:
            while True:
                for _ in range(512):
                    file.seek(0)
                    file.read(1 << 10)
                time.sleep(0.01)

    threading.Thread(target=read, daemon=True).start()
    return honest(dataset, sampler, batch_size)


LATER_SEED = 10_000
"""At least the seed of every trial but the first."""


def half_in_later_trials(dataset, sampler, batch_size) -> Callable[[int], Any]:
    return (honest if sampler.seed < LATER_SEED else half_in_the_window)(
        dataset, sampler, batch_size
    )


def cached_in_later_trials(dataset, sampler, batch_size) -> Callable[[int], Any]:
    return (honest if sampler.seed < LATER_SEED else cached_in_the_window)(
        dataset, sampler, batch_size
    )
