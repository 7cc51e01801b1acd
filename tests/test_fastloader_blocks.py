"""shuffle=Blocks: every sample once, neighbours together, from files larger than memory too."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from fastloop.fastloader import Blocks, FastLoader, converted
from fastloop.fastloader.columns import Kind
from fastloop.fastloader.indices import share
from fastloop.fastloader.places import Place, place_of
from fastloop.fastloader.rows import Rows, rows_of
from fastloop.fastloader.source import Source
from fastloop.fastloader.streamed import Streamed
from fastloop.limits import memory_limits


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 200),
    batch_size=st.integers(1, 30),
    block_size=st.integers(1, 50),
    together=st.integers(1, 5),
    world_size=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_every_sample_comes_once(count, batch_size, block_size, together, world_size, drop_last):
    source, order = torch.arange(count), Blocks(block_size, together)
    seen = []
    for rank in range(world_size):
        given = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
        loader = FastLoader(source, batch_size, order, **given)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(len(batch) == batch_size for batch in batches[:-1])
        seen += [number for batch in batches for number in batch.tolist()]
    if not drop_last:
        padded = -(-count // world_size) * world_size
        assert len(seen) == padded
        assert set(seen) == set(range(count))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 60), world_size=st.integers(1, 9), piece=st.integers(1, 20))
def test_shares_of_pieces_are_those_of_distributed_sampler(count, world_size, piece):
    pieces = np.split(np.arange(count), range(piece, count, piece))
    for rank in range(world_size):
        mine = [index for part in share(pieces, rank, world_size) for index in part]
        assert mine == list(DistributedSampler(range(count), world_size, rank, shuffle=False))


def test_blocks_stay_together_and_epochs_differ():
    loader = FastLoader(torch.arange(1000), 100, Blocks(10, 2))
    first, second = (torch.cat(list(loader)).tolist() for _ in range(2))
    assert first != second
    for pair in range(0, 1000, 20):
        assert len({number // 10 for number in first[pair : pair + 20]}) == 2


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 300),
    taken=st.integers(0, 9),
    block_size=st.integers(1, 64),
    ranks=st.integers(1, 4),
)
def test_the_rest_of_an_epoch_comes_out_of_a_saved_state(count, taken, block_size, ranks):
    def loader():
        given = {"seed": 4, "rank": ranks - 1, "world_size": ranks}
        return FastLoader(torch.arange(count), 7, Blocks(block_size, 3), **given)

    whole, running = [batch.tolist() for batch in loader()], loader()
    kept = iter(running)
    list(islice(kept, min(taken, len(whole) - 1)))
    other = loader()
    other.load_state_dict(running.state_dict())
    assert [batch.tolist() for batch in other] == whole[min(taken, len(whole) - 1) :]


BILLION = """
import resource, sys
from itertools import islice
import numpy as np
import torch
from fastloop.fastloader import Blocks, FastLoader
from fastloop.fastloader.columns import Kind

class Numbers:
    kind = Kind(torch.int64, ())

    def __len__(self):
        return 10**9

    def fill(self, indices, out):
        out.view(np.int64)[:, 0] = indices

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

world_size = int(sys.argv[1])  # 0: one, and no Blocks
before = peak()
shuffle = Blocks(512, 4) if world_size else True  # of two million blocks
share = {"rank": world_size - 1, "world_size": world_size} if world_size else {}
loader = FastLoader(Numbers(), 1000, shuffle, **share)
print(len(torch.cat(list(islice(loader, 40))).unique()), peak() - before)
"""


@pytest.mark.parametrize("world_size", [0, 1, 3])
def test_a_billion_samples_start_without_their_indices(world_size):
    command = [sys.executable, "-c", BILLION, str(world_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, grown = (int(figure) for figure in done.stdout.split())
    assert count == 40_000
    assert grown < (100 << 20 if sys.platform == "darwin" else 100 << 10)  # bytes there, KiB here


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """16,384 rows of 64 KiB that begin with their number; most of it takes no place on the disk."""
    path = tmp_path_factory.mktemp("large") / "rows.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.int64, (16_384, 8192))
    rows[:, 0] = np.arange(16_384)
    rows.flush()
    return path


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_are_read_in_any_order(file, data):
    rows = np.load(file, mmap_mode="r")
    streamed = Streamed(rows_of(rows), place_of(rows))
    ones = st.lists(st.integers(0, 16_383), min_size=1, max_size=40)
    many = st.integers(1, 300).map(range)  # in more than one read past the page cache
    indices = np.array([*data.draw(ones), *data.draw(many)])
    out = np.ones((len(indices), 65_536), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.delattr(os, "O_DIRECT", raising=False)
        streamed.fill(indices, out)
    found = out.view(np.int64)
    assert (found[:, 0] == indices).all()
    assert not found[:, 1:].any()


def test_a_part_of_a_map_is_found_in_its_file(file):
    rows = np.load(file, mmap_mode="r")[5000:]
    streamed = Streamed(rows_of(rows), place_of(rows))
    out = np.empty((1, 65_536), np.uint8)
    streamed.fill(np.array([3]), out)
    assert out.view(np.int64)[0, 0] == 5003
    assert place_of(rows[::2]) is None
    assert place_of(np.zeros(3)) is None


@settings(max_examples=300, deadline=None)
@given(
    count=st.integers(1, 3000),
    block_size=st.integers(1, 200),
    together=st.integers(1, 5),
    batch_size=st.integers(1, 100),
    world_size=st.integers(1, 3),
)
def test_a_piece_is_few_stretches_whatever_the_batch_size(
    count, block_size, together, batch_size, world_size
):
    given = {"rank": world_size - 1, "world_size": world_size}
    loader = FastLoader(torch.arange(count), batch_size, Blocks(block_size, together), **given)
    pieces = list(loader._order.pieces(0))
    if block_size * together < batch_size:
        assert all(len(piece) <= together * block_size + world_size for piece in pieces[:-1])
        return
    assert not any(len(piece) % batch_size for piece in pieces[:-1])
    left = 1 + -(-batch_size // block_size)  # blocks of which rows may be left for the next piece
    ends = 4 if world_size > 1 else 0  # of blocks that a rank shares with others, and the first
    for piece in pieces:
        assert (np.diff(np.sort(piece)) != 1).sum() <= together + left + ends


def test_a_short_block_that_comes_first_does_not_end_reading_in_stretches(tmp_path, monkeypatch):
    monkeypatch.setattr("fastloop.fastloader.streamed.usable_memory_bytes", lambda: 12 << 20)
    path, count = tmp_path / "rows.npy", 8 * 16 + 9
    np.lib.format.open_memmap(path, "w+", np.int64, (count, 8192))[:, 5] = np.arange(count)
    given = {"num_threads": 1, "prefetch_factor": 1, "shuffle": Blocks(16)}
    loader = FastLoader(np.load(path, mmap_mode="r"), 8, **given)
    firsts = set()
    for epoch in range(40):
        firsts.add(len(next(loader._order.pieces(epoch))))
        source, _ = loader._coming(epoch)
        assert isinstance(source, Source)
        assert isinstance(source.columns[0], Streamed)
    assert firsts == {8, 16}
    assert sorted(torch.cat([batch[:, 5] for batch in loader]).tolist()) == list(range(count))


@pytest.mark.parametrize("channels_last", [False, True])
def test_what_is_converted_of_a_large_file_is_read_in_stretches_too(
    tmp_path, monkeypatch, channels_last
):
    monkeypatch.setattr("fastloop.fastloader.streamed.usable_memory_bytes", lambda: 40 << 20)
    images = np.random.default_rng(0).integers(0, 256, (700, 3, 100, 105), np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    given = {"mean": (0.4, 0.5, 0.6), "std": 0.2, "channels_last": channels_last}
    column = pickle.loads(pickle.dumps(converted(mapped, **given)))
    assert len(pickle.dumps(column)) < 10_000
    settings = {"num_threads": 1, "prefetch_factor": 1, "shuffle": Blocks(10, 2)}
    loader = FastLoader((column, torch.arange(700)), 8, **settings)
    source, _ = loader._coming(0)
    assert isinstance(source, Source)
    assert [type(one) for one in source.columns] == [Streamed, Rows]
    beside = FastLoader((converted(images, **given), torch.arange(700)), 8, **settings)
    for batch, wanted in zip(loader, beside, strict=True):
        assert torch.equal(batch[1], wanted[1])
        assert torch.equal(batch[0], wanted[0])
        assert batch[0].stride() == wanted[0].stride()


def test_a_file_that_ends_early_is_named(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(100))
    rows = Rows(np.zeros((11, 10), np.uint8), Kind(torch.uint8, (10,)))
    streamed = Streamed(rows, Place(str(path), 0, (path.stat().st_dev, path.stat().st_ino)))
    streamed.fill(np.array([9]), np.empty((1, 10), np.uint8))
    with pytest.raises(OSError, match=f"{path}: it ends at byte 100, rows go on"):
        streamed.fill(np.array([10]), np.empty((1, 10), np.uint8))


def test_limits_of_groups_and_of_those_above_them(tmp_path):
    for folder, name, limit in [
        ("memory/a/b", "memory.limit_in_bytes", 800),
        ("memory/a", "memory.limit_in_bytes", 700),
        ("c", "memory.max", "max"),
    ]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(f"{limit}\n")
    membership = tmp_path / "membership"
    membership.write_text("4:cpu:/x\n3:memory:/a/b\n0::/c\n")
    assert list(memory_limits(tmp_path, membership)) == [800, 700]
    assert list(memory_limits(tmp_path, tmp_path / "none")) == []


PROGRAM = """
import os, sys
import numpy as np
from fastloop.fastloader import Blocks, FastLoader
open(sys.argv[1], "w").write(str(os.getpid()))  # torch's libraries may have to be read, too
rows = np.load(sys.argv[2], mmap_mode="r")
rank, world_size = map(int, sys.argv[3:])
loader = FastLoader(rows, 64, Blocks(128, 2), rank=rank, world_size=world_size)
print(sum(int(batch[:, 0].sum()) for batch in loader))
"""


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_file_larger_than_memory_is_read_within_it(file, memory_group, world_size):
    """All of it, by one rank after the other, each in a group that may have half as much: neither
    the process nor what the kernel keeps of the file for it comes near the limit."""
    total = 0
    for rank in range(world_size):
        group = memory_group(512)
        own = [str(group / "cgroup.procs"), str(file), str(rank), str(world_size)]
        command = [sys.executable, "-c", PROGRAM, *own]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        total += int(done.stdout)
        told = (group / "memory.stat").read_text()
        assert int((group / "memory.failcnt").read_text()) == 0, told
    assert total == sum(range(16_384))
