"""Which rows an epoch has, and how they are cut into batches and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.laid import Laid

MOST_BATCHES = 4096
"""Of a block."""


@dataclass(frozen=True)
class Block:
    """Rows that are gathered at once, and the batches that they are."""

    indices: np.ndarray
    """int64."""
    sizes: int | list[int]
    """Rows of each batch, the last of them perhaps fewer; or of every single one."""

    def split(self) -> list[int]:
        """Rows of every single batch."""
        if isinstance(self.sizes, list):
            return self.sizes
        whole, short = divmod(len(self.indices), self.sizes)
        return [self.sizes] * whole + [short] * bool(short)


def checked(indices: np.ndarray, num_samples: int) -> np.ndarray:
    """The same as int64; raises IndexError for one outside of [0, num_samples).

    Once an epoch: the gather itself clips, because a check there copies every batch once more.
    """
    indices = np.ascontiguousarray(_integers(indices), np.int64)
    if len(indices) and indices.view(np.uint64).max() >= num_samples:  # nor is one below 0
        wrong = indices[(indices < 0) | (indices >= num_samples)][0]
        raise IndexError(f"index {wrong} is out of bounds for {num_samples} samples")
    return indices


@dataclass(frozen=True)
class Blocks:
    """An order, for shuffle=: blocks of neighbours one after the other at random, and the rows of
    `blocks_together` of them shuffled into each other.

    It is drawn as the epoch goes on, and only the table of blocks grows with the number of samples.
    Not a uniform permutation: rows of a block stay near each other. So a file that is larger than
    memory can be read in long stretches: a block should take megabytes there.

    Of several ranks each has blocks of its own, others in every epoch. All draw the same table;
    its blocks laid end to end are cut into world_size stretches of ceil(num_samples / world_size)
    rows, the last ones filled up from the beginning, which takes fewer than world_size rows. A rank
    delivers the whole blocks of its stretch, as above, and then what it has of those that are cut
    at its ends. Nothing else is delivered, or read, by two ranks.
    """

    block_size: int
    """Rows of a block."""
    blocks_together: int = 1

    def __post_init__(self) -> None:
        for name in ("block_size", "blocks_together"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: allowed is 1 or more")

    def pieces(
        self,
        num_samples: int,
        generator: torch.Generator,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int = 1,
    ) -> Iterator[np.ndarray]:
        """That rank's int64 indices, a piece for the blocks that are shuffled into each other.

        Where a piece takes a batch or more it has whole batches, but for the last one: what is left
        of its last block, which are neighbours, is shuffled into the next piece. Left as batches
        fall, it would be rows from anywhere, and every piece would be read in hundreds of stretches
        from the first one on that has not whole batches.

        generator: in the same state for every rank.
        """
        count = -(-num_samples // self.block_size)
        blocks = torch.randperm(count, generator=generator, device="cpu")
        laid, ends = Laid(blocks, self.block_size, num_samples), blocks[:0]
        if world_size > 1:
            blocks, ends = laid.of_rank(rank, world_size)
            generator = _of_rank(generator, rank, world_size)
        step = (
            self.blocks_together
        )  # split() would make as many tensors as there are blocks at once
        groups = (laid.rows(blocks[at : at + step]) for at in range(0, len(blocks), step))
        left, size = blocks[:0], batch_size if step * self.block_size >= batch_size else 1
        for group in chain(groups, [ends]):
            rows = torch.cat([left, group])
            whole = len(rows) - len(rows) % size
            rows, left = rows[:whole], rows[whole:]
            if whole:
                yield _mixed(rows, generator)
        if len(left):
            yield _mixed(left, generator)


def _mixed(rows: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    return rows[torch.randperm(len(rows), generator=generator, device="cpu")].numpy()


def _of_rank(shared: torch.Generator, rank: int, world_size: int) -> torch.Generator:
    """One of a rank's own: of the same one all would mix their rows in the same way."""
    seeds = torch.empty(world_size, dtype=torch.int64, device="cpu").random_(generator=shared)
    return torch.Generator("cpu").manual_seed(int(seeds[rank]))


def _integers(given: Any) -> np.ndarray:
    """Raises ValueError for a mask, for floats, and for more than one dimension."""
    found = np.asarray(given)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        what = f"{found.dtype} of shape {found.shape}"
        raise ValueError(f"a sampler gives one row of integers, got {what}")
    return found


def share(pieces: Iterable[np.ndarray], rank: int, world_size: int) -> Iterator[np.ndarray]:
    """A rank's, as torch's DistributedSampler gives them: every one has as many, the last ones
    some from the beginning."""
    if world_size == 1:
        yield from pieces
        return
    length, first = 0, np.empty(0, np.int64)
    for piece in pieces:
        if len(first) < world_size:
            first = np.concatenate([first, piece[:world_size]])
        yield piece[(rank - length) % world_size :: world_size]
        length += len(piece)
    if length and rank >= length % world_size > 0:
        yield np.resize(first[:length], world_size)[[(rank - length) % world_size]]


def cut(
    pieces: Iterable[np.ndarray], batch_size: int, drop_last: bool, batches: Iterable[int] | None
) -> Iterator[Block]:
    """Blocks of as many batches as that tells of each; None: of as many as a piece has, with what
    the last one left."""
    held, counts = np.empty(0, np.int64), iter(batches or ())
    for piece in _of_batches(pieces, batch_size):
        held = np.concatenate([held, piece]) if len(held) else piece
        whole, start = len(held) - len(held) % batch_size, 0
        while start < whole:
            end = min(whole, start + batch_size * next(counts, whole))
            yield Block(held[start:end].astype(np.int64, copy=False), batch_size)
            start = end
        held = held[whole:]
    if len(held) and not drop_last:
        yield Block(held.astype(np.int64, copy=False), batch_size)


def _of_batches(pieces: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """The same, put together until they have a batch: one after the other that would be a copy of
    all that is there for each of them."""
    held: list[np.ndarray] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= batch_size:
            yield np.concatenate(held) if len(held) > 1 else piece
            held, count = [], 0
    if held:
        yield np.concatenate(held)


def cut_as_given(lists: Iterable[Sequence[int]], num_samples: int, rows: int) -> list[Block]:
    """Blocks of whole batches, of at most so many rows where a batch has not more."""
    blocks: list[Block] = []
    held: list[np.ndarray] = []
    count, most = 0, 1
    for one in lists:
        batch = _integers(one).astype(np.int64, copy=False)
        if held and (count + len(batch) > rows or len(held) == most):
            blocks.append(_joined(held, num_samples))
            held, count, most = [], 0, min(2 * most, MOST_BATCHES)  # the first one comes at once
        held.append(batch)
        count += len(batch)
    return [*blocks, _joined(held, num_samples)] if held else blocks


def _joined(held: list[np.ndarray], num_samples: int) -> Block:
    return Block(checked(np.concatenate(held), num_samples), [len(one) for one in held])


def without(blocks: Iterable[Block], batches: int) -> Iterator[Block]:
    """The blocks but for so many of their batches."""
    for block in blocks:
        sizes = block.split() if batches else []
        if batches and len(sizes) <= batches:
            batches -= len(sizes)
        elif batches:
            yield Block(block.indices[sum(sizes[:batches]) :], sizes[batches:])
            batches = 0
        else:
            yield block
