"""shuffle=Blocks with several ranks: each reads blocks of its own; together, every sample."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.fastloader import Blocks, FastLoader
from fastloop.fastloader.block_shuffle import BlockSequence
from fastloop.fastloader.column_source import column_source
from fastloop.fastloader.large_files import CAN_ADVISE, DirectColumn, use_direct_reads


def deliver(
    count: int, order: Blocks, ranks: int, epoch: int = 0, batch_size: int = 7
) -> list[list[int]]:
    """Samples that each rank delivers from range(count)."""
    loaders = [
        FastLoader(torch.arange(count), batch_size, order, rank=rank, world_size=ranks, seed=0)
        for rank in range(ranks)
    ]
    for loader in loaders:
        loader.set_epoch(epoch)
    return [[number for batch in loader for number in batch.tolist()] for loader in loaders]


@given(
    count=st.integers(0, 300),
    block_size=st.integers(1, 50),
    together=st.integers(1, 5),
    ranks=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_ranks_share_the_blocks_evenly(count, block_size, together, ranks, epoch):
    order = Blocks(block_size, together)
    shares = deliver(count, order, ranks, epoch)
    length = -(-count // ranks)
    assert [len(share) for share in shares] == [length] * ranks
    counts = Counter(number for share in shares for number in share)
    assert set(counts) == set(range(count))
    # samples are repeated only to fill up the ranks' shares
    repeated = length * ranks - count
    assert sum(num_times > 1 for num_times in counts.values()) == min(repeated, count)
    assert max(counts.values(), default=1) - min(counts.values(), default=1) <= 1
    assert all(len(set(share)) == length for share in shares)
    # each of the ranks - 1 cuts, and each repeated row, adds one block to one rank
    touched = sum(len({number // block_size for number in share}) for share in shares)
    assert touched <= -(-count // block_size) + ranks - 1 + repeated
    assert deliver(count, order, ranks, epoch) == shares


def test_ranks_with_equal_generators_share_the_blocks():
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


def test_rank_shuffles_whole_blocks_together_and_partial_ones_last():
    """1,000 rows to three ranks of 334: 33 whole blocks of ten, or 32 and parts of two."""
    places = []
    for share in deliver(1000, Blocks(10, 2), 3, batch_size=10):
        counts = Counter(row // 10 for row in share)
        complete = [block for block, count in counts.items() if count == 10]
        assert len(complete) in (32, 33)
        whole = share[: 10 * len(complete)]
        assert {row // 10 for row in whole} == set(complete)
        for rows in (whole[start : start + 20] for start in range(0, len(whole), 20)):
            assert len({row // 10 for row in rows}) == len(rows) // 10
            assert rows != sorted(rows)
        places.append([row % 10 for row in whole[:20]])
    assert places[0] != places[1] != places[2]  # each rank has its own shuffle


@given(
    count=st.integers(240, 400),
    block_size=st.integers(1, 12),
    together=st.integers(1, 5),
    ranks=st.integers(1, 4),
)
def test_every_rank_gets_other_samples_in_another_epoch(count, block_size, together, ranks):
    order = Blocks(block_size, together)
    both = [deliver(count, order, ranks, epoch) for epoch in (0, 1)]
    for first, second in zip(*both, strict=True):
        assert first != second
        assert ranks == 1 or set(first) != set(second)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, [([2, 0, 3, 1], [])]),
        (2, [([2, 0], []), ([3, 1], [6])]),
        (3, [([2], [0]), ([3], [1, 2]), ([1], [6])]),
        (5, [([2], []), ([0], []), ([3], [3]), ([], [4, 5, 6]), ([], [7, 8, 0])]),
    ],
)
def test_block_sequence_splits_into_stretches(ranks, expected):
    """The sequence of rows is 6 7 8 | 0 1 2 | 9 10 | 3 4 5."""
    sequence = BlockSequence(torch.tensor([2, 0, 3, 1]), 3, 11)
    shares = [sequence.stretch(rank, ranks) for rank in range(ranks)]
    assert [(blocks.tolist(), ends.tolist()) for blocks, ends in shares] == expected


@given(data=st.data(), count=st.integers(1, 60), block_size=st.integers(1, 20))
def test_stretch_of_a_rank_holds_its_part_of_the_sequence(data, count, block_size):
    blocks = data.draw(st.permutations(range(-(-count // block_size))))
    ranks = data.draw(st.integers(1, 70))
    sequence = BlockSequence(torch.tensor(blocks), block_size, count)
    rows = sequence.rows(sequence.blocks).tolist()
    length = -(-count // ranks)
    for rank in range(ranks):
        whole, ends = sequence.stretch(rank, ranks)
        expected = [rows[place % count] for place in range(rank * length, (rank + 1) * length)]
        assert sorted(sequence.rows(whole).tolist() + ends.tolist()) == sorted(expected)
        assert len(ends) < 2 * block_size + ranks


@pytest.mark.skipif(not CAN_ADVISE, reason="direct reads need posix_fadvise")
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_reads_a_file_larger_than_memory_directly(tmp_path, world_size):
    """The sparse file holds written data only where the first batches read."""
    count, order = usable_memory_bytes() // 65_536, Blocks(16, 2)
    path = tmp_path / "rows.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.int64, (count, 8192))
    for rank in range(world_size):
        settings = {"rank": rank, "world_size": world_size, "num_threads": 1, "prefetch_factor": 1}
        settings["seed"] = 0
        expected = list(islice(FastLoader(torch.arange(count), 8, order, **settings), 8))
        for row in torch.cat(expected).tolist():
            rows[row, 5] = row
        rows.flush()
        mapped = np.load(path, mmap_mode="r")
        loader = FastLoader(mapped, 8, order, **settings)
        assert [batch[:, 5].tolist() for batch in islice(loader, 8)] == [
            batch.tolist() for batch in expected
        ]
        first = next(loader._epochs.order.pieces(0))
        assert len(first) == 32
        columns = use_direct_reads(column_source(mapped), first, 5).columns
        assert isinstance(columns[0], DirectColumn)
