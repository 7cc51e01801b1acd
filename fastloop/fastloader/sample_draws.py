"""The seed of each sample's random draws, which follows from the loader's seed, epoch and index.

A thread calls `SampleDraws.begin` before it makes a sample, and `sample_seed` then returns the
sample's seed. Augmentations draw from the global generators of torch, numpy and `random`. A process
has only one of each, which all of its threads share. The loop always reads the loader's first batch
itself, and that batch shows from which of these generators the samples draw. Later batches are read
by the loop or by other threads:

- The loop seeds the global generators for each sample, and restores them after each batch, see
  global_draws.py.
- Other threads leave the global generators alone, because the loop may draw from them at any
  moment. In these threads, torch's functions draw from a generator of the thread, see
  private_draws.py. The functions of numpy and `random` can't be redirected in this way, so the loop
  reads the samples that call them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import torch

from fastloop.core.seeds import mix_seed

SAMPLE, COLLATE, TRANSFORM = range(3)
"""Kinds of draws: those of a Dataset for a sample, of the collate_fn for a batch, and of a
transform for either."""
Begin = Callable[[int, Sequence[int]], None]
"""A function (kind of draws, indices of the samples) that is called before these samples draw."""


class _Current(threading.local):
    """The samples that this thread is making, as SampleDraws.begin has set them."""

    key: tuple[int, int, Sequence[int]] | None = None
    """(epoch's seed, kind of draws, indices of the samples); None outside of a FastLoader."""
    seed: int | None = None
    """The seed that follows from the key; None until something draws."""
    at_begin: Callable[[], None] | None = None
    """A function that is called whenever the key is set; None: no function."""


_current = _Current()


@dataclass(frozen=True)
class SampleDraws:
    """The seeds of all samples of an epoch."""

    seed: int
    """The seed on which the draws of all samples depend."""
    epoch: int
    """Number of the epoch, from 0 on."""
    is_base: bool = False
    """True if the seed is the base seed that DataLoader would draw, see torch_draws.py."""
    is_drawn_each_epoch: bool = False
    """True if each epoch draws a new seed. The epoch's number is then ignored, so that all epochs
    after the same torch.manual_seed have the same draws."""

    def worker_seed(self, number: int) -> int:
        """The seed of the worker process of this number; with a base seed, that of DataLoader."""
        if self.is_base:
            return self.seed + number
        return mix_seed(self.seed, self.epoch, number)

    # Every sample asks for this seed, and computing it takes 3 us, so it is cached.
    @cached_property
    def epoch_seed(self) -> int:
        """The seed of this epoch, of 63 bits, for its samples and for columns that draw."""
        return mix_seed(self.seed, 0 if self.is_drawn_each_epoch else self.epoch)

    def begin(self, kind: int, indices: Sequence[int]) -> None:
        """Make this thread's draws depend on these samples, until the next call.

        kind: SAMPLE, COLLATE or TRANSFORM.
        """
        # Computing the samples' seed takes longer, so `sample_seed` does that when something draws.
        current = _current
        current.key = (self.epoch_seed, kind, indices)
        current.seed = None
        if current.at_begin is not None:
            current.at_begin()


def sample_seed() -> int:
    """The seed of the sample that this thread is reading for a FastLoader, of 63 bits.

    The seed depends on the loader's seed, the epoch and the sample's index. In a collate_fn, in a
    transform of whole batches and in `__getitems__`, the indices of the batch take the place of the
    sample's index. Outside of FastLoader, such as under a DataLoader, the seed is drawn from
    torch's global generator.

    >>> rng = np.random.default_rng(fastloop.sample_seed())
    """
    # Outside of FastLoader there is no key. A worker of a DataLoader has seeded its global
    # generator with the sum of the base seed and its number, so the number drawn here is
    # reproducible there, too.
    if _current.key is None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    if _current.seed is None:
        epoch, kind, indices = _current.key
        # A batch has many indices, so the seed is a hash of all of them.
        numbers = struct.pack(f"<{2 + len(indices)}q", epoch, kind, *indices)
        digest = blake2b(numbers, digest_size=8)
        _current.seed = int.from_bytes(digest.digest(), "little") >> 1
    return _current.seed


@contextmanager
def call_at_begin(function: Callable[[], None] | None) -> Iterator[None]:
    """Call this function whenever SampleDraws.begin is called in this thread; None: no function."""
    # A sample may itself iterate over another loader. At the end, the state of the outer loader is
    # restored, so that the sample's further draws do not depend on the inner one.
    before = _current.at_begin, _current.key, _current.seed
    _current.at_begin = function
    try:
        yield
    finally:
        _current.at_begin, _current.key, _current.seed = before
