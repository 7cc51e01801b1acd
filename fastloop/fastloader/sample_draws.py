"""Random draws of a sample: from generators that (seed, epoch, index) seed, in whatever thread.

Augmentations draw from the global generators of torch, numpy and `random`, of which a process has
one each. If samples are read in the loop's own thread, these are seeded for each sample and
restored after each batch. In other threads, beside which the loop may draw from them at any moment,
they are left alone: torch's functions are redirected there (private_draws.py), and numpy's and
random's, which can't be, are noticed in the first batch, which the loop always reads itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from fastloop.core.seeds import mix_seed
from fastloop.fastloader.private_draws import PrivateDraws

SAMPLE, COLLATE, TRANSFORM = range(3)
"""Kinds of draws: of a Dataset's sample, the collate_fn of a batch, the transform of either."""
Begin = Callable[[int, Sequence[int]], None]
"""Called with one of these kinds and the indices of the samples, before anything is drawn."""


class _Current(threading.local):
    """The samples or the batch that this thread is making, from `begin` on."""

    key: tuple[int, int, Sequence[int]] | None = None
    seed: int | None = None
    """The seed of the key, once it is needed."""
    follow: Callable[[], None] | None = None
    """Called when another key begins."""


_current = _Current()


@dataclass(frozen=True)
class SampleDraws:
    """The seeds of all samples of an epoch."""

    seed: int
    epoch: int
    is_base: bool = False
    """True if the seed is DataLoader's base seed."""
    is_drawn_anew: bool = False
    """True if each epoch draws the seed: after the same torch.manual_seed all are alike."""

    def worker_seed(self, number: int) -> int:
        """The seed of a worker process: DataLoader's, if the seed is its base seed."""
        if self.is_base:
            return self.seed + number
        return mix_seed(self.seed, self.epoch, number)

    # Asked for with every sample, and making it takes 3 us.
    @cached_property
    def epoch_seed(self) -> int:
        """A seed of 63 bits for the columns of the epoch."""
        return mix_seed(self.seed, 0 if self.is_drawn_anew else self.epoch)

    def begin(self, kind: int, indices: Sequence[int]) -> None:
        """Let this thread draw for these samples from now on."""
        # The seed itself takes longer, and is made when something draws.
        _current.key, _current.seed = (self.epoch_seed, kind, indices), None
        if _current.follow is not None:
            _current.follow()


def sample_seed() -> int:
    """The seed of the sample that this thread is reading for a FastLoader, of 63 bits.

    It depends on the loader's seed, the epoch and the sample's index; in a collate_fn, in a
    transform of whole batches and in `__getitems__`, on the batch's indices. Outside of FastLoader,
    such as under a DataLoader, it is drawn from torch's global generator.

    >>> rng = np.random.default_rng(fastloop.sample_seed())
    """
    # Under a DataLoader the worker's generator is seeded by its base seed.
    if _current.key is None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    if _current.seed is None:
        epoch, kind, indices = _current.key
        # A batch has many indices: its seed is their hash.
        digest = blake2b(np.array([epoch, kind, *indices], np.int64).tobytes(), digest_size=8)
        _current.seed = int.from_bytes(digest.digest(), "little") >> 1
    return _current.seed


@contextmanager
def draw_privately() -> Iterator[None]:
    """Redirect this thread's draws from torch's generator to one that each sample seeds."""
    draws = PrivateDraws(sample_seed)
    with _following(draws.restart), draws:
        yield


@contextmanager
def draw_globally() -> Iterator[None]:
    """Seed the global generators for each sample; they are restored at the end."""
    with _restoring(), _following(_seed_all):
        yield


@contextmanager
def find_global_draws(found: set[str]) -> Iterator[None]:
    """Like draw_globally. Adds to `found` the owners of the generators that threads would have to
    share: "numpy", "random", and "torch" for draws that can't be redirected."""
    after: dict[str, Any] = {}

    def compare() -> None:
        states = _states()
        # A state that has changed since it was seeded: the sample has drawn from it.
        found.update(name for name in after if not _equals(after[name], states[name]))

    def follow() -> None:
        compare()
        draws.restart()
        _seed_all()
        after.update(_states())

    draws = PrivateDraws(sample_seed)
    # draws is active too, so that torch's global generator changes only by draws that pass it by.
    with _restoring(), _following(follow), draws:
        yield
        compare()


@contextmanager
def _following(follow: Callable[[], None]) -> Iterator[None]:
    _current.follow = follow
    try:
        yield
    finally:
        _current.follow = _current.key = None


@contextmanager
def _restoring() -> Iterator[None]:
    before = _states()
    try:
        yield
    finally:
        random.setstate(before["random"])
        np.random.set_state(before["numpy"])
        torch.default_generator.set_state(before["torch"])


def _states() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        # torch.get_rng_state would read the generator of this thread.
        "torch": torch.default_generator.get_state(),
    }


def _equals(state: Any, other: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other)
    return all(np.array_equal(part, its) for part, its in zip(state, other, strict=True))


def _seed_all() -> None:
    seed = sample_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed would seed the generators of all devices as well.
    torch.default_generator.manual_seed(seed)
