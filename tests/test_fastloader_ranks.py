"""shuffle=Blocks of several ranks: each has whole blocks of its own, and every sample comes."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloop.fastloader import Blocks, FastLoader
from fastloop.fastloader.laid import Laid
from fastloop.fastloader.source import source_of
from fastloop.fastloader.streamed import CAN_ADVISE, Streamed, streamed
from fastloop.limits import usable_memory_bytes


def delivered(
    count: int, order: Blocks, ranks: int, epoch: int = 0, batch_size: int = 7
) -> list[list[int]]:
    """What each rank delivers of the numbers below count."""
    loaders = [
        FastLoader(torch.arange(count), batch_size, order, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    for loader in loaders:
        loader.set_epoch(epoch)
    return [[number for batch in loader for number in batch.tolist()] for loader in loaders]


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(0, 300),
    block_size=st.integers(1, 50),
    together=st.integers(1, 5),
    ranks=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_ranks_share_the_blocks(count, block_size, together, ranks, epoch):
    order = Blocks(block_size, together)
    shares = delivered(count, order, ranks, epoch)
    length = -(-count // ranks)
    assert [len(share) for share in shares] == [length] * ranks
    times = Counter(number for share in shares for number in share)
    assert set(times) == set(range(count))
    # a sample comes once more only where all would have too few
    again = length * ranks - count
    assert sum(often > 1 for often in times.values()) == min(again, count)
    assert max(times.values(), default=1) - min(times.values(), default=1) <= 1
    assert all(len(set(share)) == length for share in shares)
    # each of the ranks - 1 cuts, and each row that comes again, adds one block to one rank
    touched = sum(len({number // block_size for number in share}) for share in shares)
    assert touched <= -(-count // block_size) + ranks - 1 + again
    assert delivered(count, order, ranks, epoch) == shares


def test_generators_of_one_seed_share_the_blocks():
    loaders = [
        FastLoader(
            torch.arange(1000),
            50,
            Blocks(16, 3),
            generator=torch.Generator().manual_seed(5),
            rank=rank,
            world_size=3,
        )
        for rank in range(3)
    ]
    for _ in range(2):
        seen = torch.cat([batch for loader in loaders for batch in loader])
        assert len(seen) == 1002
        assert len(seen.unique()) == 1000


def test_a_rank_shuffles_whole_blocks_into_each_other_and_then_its_ends():
    """1,000 rows to three ranks of 334: 33 whole blocks of ten, or 32 and parts of two."""
    places = []
    for share in delivered(1000, Blocks(10, 2), 3, batch_size=10):
        own = [one for one, often in Counter(row // 10 for row in share).items() if often == 10]
        assert len(own) in (32, 33)
        whole = share[: 10 * len(own)]
        assert {row // 10 for row in whole} == set(own)
        for rows in (whole[start : start + 20] for start in range(0, len(whole), 20)):
            assert len({row // 10 for row in rows}) == len(rows) // 10
            assert rows != sorted(rows)
        places.append([row % 10 for row in whole[:20]])
    assert places[0] != places[1] != places[2]  # each is mixed in its own way


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(240, 400),
    block_size=st.integers(1, 12),
    together=st.integers(1, 5),
    ranks=st.integers(1, 4),
)
def test_every_rank_has_other_samples_in_another_epoch(count, block_size, together, ranks):
    order = Blocks(block_size, together)
    both = [delivered(count, order, ranks, epoch) for epoch in (0, 1)]
    for first, second in zip(*both, strict=True):
        assert first != second
        assert ranks == 1 or set(first) != set(second)


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        (1, [([2, 0, 3, 1], [])]),
        (2, [([2, 0], []), ([3, 1], [6])]),
        (3, [([2], [0]), ([3], [1, 2]), ([1], [6])]),
        (5, [([2], []), ([0], []), ([3], [3]), ([], [4, 5, 6]), ([], [7, 8, 0])]),
    ],
)
def test_stretches_of_blocks_laid_end_to_end(ranks, wanted):
    """6 7 8 | 0 1 2 | 9 10 | 3 4 5."""
    laid = Laid(torch.tensor([2, 0, 3, 1]), 3, 11)
    shares = [laid.of_rank(rank, ranks) for rank in range(ranks)]
    assert [(blocks.tolist(), ends.tolist()) for blocks, ends in shares] == wanted


@settings(max_examples=200, deadline=None)
@given(data=st.data(), count=st.integers(1, 60), block_size=st.integers(1, 20))
def test_a_stretch_is_that_of_the_sequence_itself(data, count, block_size):
    blocks = data.draw(st.permutations(range(-(-count // block_size))))
    ranks = data.draw(st.integers(1, 70))
    laid = Laid(torch.tensor(blocks), block_size, count)
    sequence = laid.rows(laid.blocks).tolist()
    length = -(-count // ranks)
    for rank in range(ranks):
        whole, ends = laid.of_rank(rank, ranks)
        mine = [sequence[place % count] for place in range(rank * length, (rank + 1) * length)]
        assert sorted(laid.rows(whole).tolist() + ends.tolist()) == sorted(mine)
        assert len(ends) < 2 * block_size + ranks


@pytest.mark.skipif(not CAN_ADVISE, reason="files are not read in stretches here")
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_reads_a_file_larger_than_memory_in_stretches(tmp_path, world_size):
    """Of a file that is mostly a hole, what the first batches need has been written."""
    count, order = usable_memory_bytes() // 65_536, Blocks(16, 2)
    path = tmp_path / "rows.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.int64, (count, 8192))
    for rank in range(world_size):
        given = {"rank": rank, "world_size": world_size, "num_threads": 1, "prefetch_factor": 1}
        wanted = list(islice(FastLoader(torch.arange(count), 8, order, **given), 8))
        for row in torch.cat(wanted).tolist():
            rows[row, 5] = row
        rows.flush()
        mapped = np.load(path, mmap_mode="r")
        loader = FastLoader(mapped, 8, order, **given)
        assert [batch[:, 5].tolist() for batch in islice(loader, 8)] == [
            batch.tolist() for batch in wanted
        ]
        first = next(loader._order.pieces(0))
        assert len(first) == 32
        columns = streamed(source_of(mapped), first, 5).columns
        assert isinstance(columns[0], Streamed)
