"""Which samples come when, and in which batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from fastloop.fastloader.drawn import drawn
from fastloop.fastloader.indices import Block, Blocks, checked, cut, cut_as_given, share
from fastloop.torch_threads import made_on_one, one_torch_thread

IN_ORDER = 1 << 20
"""Indices of a piece of the source's own order."""
KEPT = 1 << 20
"""Of more samples no permutation is kept: each index is computed when it is asked for, drawn.py."""


Permute = Callable[[int, int], np.ndarray]


def permutation(num_samples: int, seed: int) -> np.ndarray:
    """int32 indices: torch.randperm's order of that seed."""
    return _permuted(num_samples, torch.Generator("cpu").manual_seed(seed))


@runtime_checkable
class Pieces(Protocol):
    """A sampler that is asked for its indices as the epoch goes on."""

    def pieces(self) -> Iterable[np.ndarray]:
        """Those of an epoch, part by part."""
        ...


@dataclass(frozen=True, kw_only=True)
class Order:
    """What DataLoader's settings of these names say, and those of DistributedSampler.

    Raises ValueError where they exclude each other.
    """

    num_samples: int
    batch_size: int | None
    shuffle: bool | Blocks
    sampler: Iterable[int] | torch.Tensor | Pieces | None
    batch_sampler: Iterable[Sequence[int]] | None
    drop_last: bool
    generator: torch.Generator | None
    seed: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if type(self.batch_size) not in (int, type(None)):
            raise ValueError(f"batch_size={self.batch_size!r}: allowed is 1 or more, or None")
        if not isinstance(self.shuffle, bool | Blocks):
            raise ValueError(f"shuffle={self.shuffle!r}: allowed are True, False and Blocks")
        if self.world_size > 1 and isinstance(self.sampler, DistributedSampler):
            raise ValueError("world_size with a DistributedSampler: that has its rank's share")
        size, others = self.batch_size, (self.shuffle, self.drop_last, self.sampler is not None)
        if size is None and self.drop_last:
            raise ValueError("drop_last with batch_size=None: no batch is short where none is made")
        if size is not None and size < 1:
            raise ValueError(f"batch_size={size}: allowed is 1 or more")
        if self.sampler is not None and self.shuffle:
            raise ValueError(f"shuffle={self.shuffle} with a sampler: the sampler has the order")
        if self.batch_sampler is not None and (size != 1 or any(others)):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if self.batch_sampler is not None and self.world_size != 1:
            told = f"world_size={self.world_size} with batch_sampler"
            raise ValueError(f"{told}: that has each rank's share itself")
        if not 0 <= self.rank < self.world_size:
            allowed = f"allowed are 0 to world_size - 1, it is {self.world_size}"
            raise ValueError(f"rank={self.rank}: {allowed}")

    def __len__(self) -> int:
        """How many batches an epoch has."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # pyright: ignore[reportArgumentType]
        given = self.num_samples if self.sampler is None else len(self.sampler)  # pyright: ignore[reportArgumentType]
        own, size = self.share_of(given), self.batch_size or 1
        return own // size if self.drop_last else -(-own // size)

    @property
    def is_the_sources(self) -> bool:
        """True where all samples come one after the other."""
        given = self.shuffle or self.sampler is not None or self.batch_sampler is not None
        return not given and self.world_size == 1

    def share_of(self, num_samples: int) -> int:
        """How many of so many are this rank's."""
        return -(-num_samples // self.world_size)

    def ahead(self, epoch: int, permute: Permute) -> None:
        """Call `permute`, which keeps what it has drawn last, as `pieces` will for that epoch."""
        if self.shuffle is True and self.generator is None and self.num_samples <= KEPT:
            with one_torch_thread():
                permute(self.num_samples, self.seed + epoch)

    def pieces(self, epoch: int, permute: Permute = permutation) -> Iterator[np.ndarray]:
        """This rank's indices, part by part: of Blocks whole blocks, of another order every
        world_size-th index. What they depend on has been drawn when this returns. Raises
        IndexError for one that is not there."""
        with one_torch_thread():
            if isinstance(self.shuffle, Blocks):
                own = self._generator(epoch)
                mine = self.rank, self.world_size, self.batch_size or 1
                return made_on_one(self.shuffle.pieces(self.num_samples, own, *mine))
            if self.shuffle and self.num_samples > KEPT:
                own = self._generator(epoch)
                return drawn(self.num_samples, own).pieces(self.rank, self.world_size)
            whole = self._whole(epoch, permute)
        return share(made_on_one(whole), self.rank, self.world_size)

    def blocks(
        self, pieces: Iterable[np.ndarray], batches: Iterable[int] | None
    ) -> Iterator[Block]:
        """Blocks of so many batches each; None: of what a piece holds."""
        return cut(pieces, self.batch_size or 1, self.drop_last, batches)

    def blocks_as_given(self, most_rows: int) -> list[Block]:
        """Those of batch_sampler, of at most so many rows where a batch has not more."""
        assert self.batch_sampler is not None
        with one_torch_thread():
            return cut_as_given(self.batch_sampler, self.num_samples, most_rows)

    def _whole(self, epoch: int, permute: Permute) -> Iterable[np.ndarray]:
        if self.sampler is not None:
            if isinstance(self.sampler, Pieces):
                return (checked(piece, self.num_samples) for piece in self.sampler.pieces())
            return [checked(_array(self.sampler), self.num_samples)]
        if not self.shuffle:
            return self._one_after_the_other()
        if self.generator is None:
            return [permute(self.num_samples, self.seed + epoch)]
        return [_permuted(self.num_samples, self.generator)]

    def _generator(self, epoch: int) -> torch.Generator:
        """What an order is drawn from as the epoch goes on: nobody else uses it."""
        seed = self.seed + epoch
        if self.generator is not None:  # one figure, so that it may be used for other things since
            figure = torch.empty((), dtype=torch.int64, device="cpu")
            seed = int(figure.random_(generator=self.generator))
        return torch.Generator("cpu").manual_seed(seed)

    def _one_after_the_other(self) -> Iterator[np.ndarray]:
        size = self.batch_size or 1
        step = size * max(1, IN_ORDER // size)  # whole batches: none of them is put together
        for start in range(0, self.num_samples, step):
            yield np.arange(start, min(start + step, self.num_samples))


def _permuted(num_samples: int, by: torch.Generator) -> np.ndarray:
    # int32 is drawn faster than int64
    return torch.randperm(num_samples, generator=by, dtype=torch.int32, device="cpu").numpy()


def _array(indices: Any) -> np.ndarray:
    if isinstance(indices, torch.Tensor | np.ndarray | list):
        return np.asarray(indices)
    try:
        return np.fromiter(map(index, indices), np.int64)
    except TypeError as error:
        raise ValueError(f"a sampler gives integers: {error}") from None
