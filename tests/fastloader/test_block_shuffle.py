"""shuffle=Blocks: every sample once, neighbours together, also from files larger than memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from fastloop.core.cgroup import memory_limits
from fastloop.core.sharding import shard
from fastloop.fastloader import Blocks, FastLoader, converted
from fastloop.fastloader.checkpoint import EpochProgress
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.columns.array import ArrayColumn, array_column
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.mapped_file import (
    FileIdentity,
    FileRegion,
    pack_maps,
    region_of,
    unpack_maps,
)
from fastloop.fastloader.large_files import DirectColumn
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.torch_draws import EpochSeeds, EpochStart


@given(
    count=st.integers(1, 200),
    batch_size=st.integers(1, 30),
    block_size=st.integers(1, 50),
    together=st.integers(1, 5),
    world_size=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_blocks_deliver_every_sample_once(
    count, batch_size, block_size, together, world_size, drop_last
):
    source, order = torch.arange(count), Blocks(block_size, together)
    seen = []
    for rank in range(world_size):
        settings = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
        loader = FastLoader(source, batch_size, order, **settings)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(len(batch) == batch_size for batch in batches[:-1])
        seen += [number for batch in batches for number in batch.tolist()]
    if not drop_last:
        padded = -(-count // world_size) * world_size
        assert len(seen) == padded
        assert set(seen) == set(range(count))


@given(count=st.integers(1, 60), world_size=st.integers(1, 9), piece=st.integers(1, 20))
def test_shard_divides_pieces_like_distributed_sampler(count, world_size, piece):
    pieces = np.split(np.arange(count), range(piece, count, piece))
    for rank in range(world_size):
        indices = [index for part in shard(pieces, rank, world_size) for index in part]
        assert indices == list(DistributedSampler(range(count), world_size, rank, shuffle=False))


@pytest.mark.parametrize(("name", "value"), [("block_size", 0), ("blocks_together", 2.5)])
def test_blocks_of_no_whole_number_of_rows_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}={value}: allowed is 1 or more$"):
        Blocks(**{"block_size": 4, name: value})


def test_blocks_stay_together_and_epochs_differ():
    loader = FastLoader(torch.arange(1000), 100, Blocks(10, 2))
    first, second = (torch.cat(list(loader)).tolist() for _ in range(2))
    assert first != second
    for pair in range(0, 1000, 20):
        assert len({number // 10 for number in first[pair : pair + 20]}) == 2


@given(
    count=st.integers(1, 300),
    taken=st.integers(0, 9),
    block_size=st.integers(1, 64),
    ranks=st.integers(1, 4),
)
def test_saved_state_resumes_an_epoch_of_blocks(count, taken, block_size, ranks):
    def make_loader():
        settings = {"seed": 4, "rank": ranks - 1, "world_size": ranks}
        return FastLoader(torch.arange(count), 7, Blocks(block_size, 3), **settings)

    whole, running = [batch.tolist() for batch in make_loader()], make_loader()
    batches = iter(running)
    list(islice(batches, min(taken, len(whole) - 1)))
    other = make_loader()
    other.load_state_dict(running.state_dict())
    assert [batch.tolist() for batch in other] == whole[min(taken, len(whole) - 1) :]


READ_BILLION = """
import resource, sys
from itertools import islice
import numpy as np
import torch
from fastloop.fastloader import Blocks, FastLoader
from fastloop.fastloader.columns.column import SampleSpec

class Numbers:
    spec = SampleSpec(torch.int64, ())

    def __len__(self):
        return 10**9

    def fill(self, indices, out):
        out.view(np.int64)[:, 0] = indices

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

world_size = int(sys.argv[1])  # 0: one rank without Blocks
before = peak()
shuffle = Blocks(512, 4) if world_size else True  # of two million blocks
share = {"rank": world_size - 1, "world_size": world_size} if world_size else {}
loader = FastLoader(Numbers(), 1000, shuffle, **share)
print(len(torch.cat(list(islice(loader, 40))).unique()), peak() - before)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("world_size", [0, 3])
def test_epoch_of_a_billion_samples_starts_in_little_memory(world_size):
    command = [sys.executable, "-c", READ_BILLION, str(world_size)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    count, growth = map(int, process.stdout.split())
    assert count == 40_000
    unit_bytes = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    assert growth * unit_bytes < 100 << 20


@pytest.fixture(scope="module")
def large_file(tmp_path_factory) -> Path:
    """A sparse file of 16,384 rows of 64 KiB; each row begins with its index."""
    path = tmp_path_factory.mktemp("large") / "rows.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.int64, (16_384, 8192))
    rows[:, 0] = np.arange(16_384)
    rows.flush()
    return path


@pytest.mark.heavy
@given(data=st.data())
def test_direct_column_reads_rows_in_any_order(large_file, data):
    rows = np.load(large_file, mmap_mode="r")
    column = DirectColumn(array_column(rows), region_of(rows))
    singles = st.lists(st.integers(0, 16_383), min_size=1, max_size=40)
    ranges = st.integers(1, 300).map(range)  # may need more than one direct read
    indices = np.array([*data.draw(singles), *data.draw(ranges)])
    out = np.ones((len(indices), 65_536), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.delattr(os, "O_DIRECT", raising=False)
        column.fill(indices, out)
    values = out.view(np.int64)
    assert (values[:, 0] == indices).all()
    assert not values[:, 1:].any()


def test_region_of_locates_a_slice_of_a_map_in_its_file(large_file):
    rows = np.load(large_file, mmap_mode="r")[5000:]
    column = DirectColumn(array_column(rows), region_of(rows))
    out = np.empty((1, 65_536), np.uint8)
    column.fill(np.array([3]), out)
    assert out.view(np.int64)[0, 0] == 5003
    assert region_of(rows[::2]) is None
    assert region_of(np.zeros(3)) is None


def test_maps_are_pickled_as_regions_of_their_files(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(30_000).reshape(-1, 3))
    read_only, shared = (np.load(path, mmap_mode=mode) for mode in ("r", "r+"))
    changed = np.load(path, mmap_mode="c")
    changed[0] = -1  # not written to the file
    shared[1] = -2
    pickled = pickle.dumps(pack_maps([read_only[700:], shared, shared.view(np.uint8)]))
    assert len(pickled) < 2000
    part, whole, as_bytes = unpack_maps(pickle.loads(pickled))
    assert part.tolist() == read_only[700:].tolist()
    assert not part.flags.writeable
    assert whole.tolist() == shared.tolist()
    assert whole.flags.writeable
    assert as_bytes.shape == (10_000, 24)
    assert unpack_maps(pickle.loads(pickle.dumps(pack_maps(changed)))).tolist() == changed.tolist()
    path.unlink()
    assert pack_maps(read_only) is read_only


@given(
    count=st.integers(1, 3000),
    block_size=st.integers(1, 200),
    together=st.integers(1, 5),
    batch_size=st.integers(1, 100),
    world_size=st.integers(1, 3),
)
def test_piece_of_blocks_needs_few_contiguous_reads(
    count, block_size, together, batch_size, world_size
):
    settings = {"rank": world_size - 1, "world_size": world_size}
    loader = FastLoader(torch.arange(count), batch_size, Blocks(block_size, together), **settings)
    pieces = list(loader._epochs.order.pieces(0))
    if block_size * together < batch_size:
        assert all(len(piece) <= together * block_size + world_size for piece in pieces[:-1])
        return
    assert not any(len(piece) % batch_size for piece in pieces[:-1])
    unfinished = 1 + -(-batch_size // block_size)  # blocks with rows left for the next piece
    ends = 4 if world_size > 1 else 0  # blocks shared with other ranks, and the first one
    for piece in pieces:
        assert (np.diff(np.sort(piece)) != 1).sum() <= together + unfinished + ends


def plan_epoch(loader, epoch):
    """What an epoch is made of, and the groups of its batches."""
    progress = EpochProgress.of(loader._epochs.begin_state(epoch))
    draws = SampleDraws(0, epoch)
    epoch_start = EpochStart(EpochSeeds(epoch, 0, is_base=False), nullcontext())
    plan = loader._epochs.engine.plan(loader._epochs.order, progress, epoch_start, draws)
    return plan.source, plan.groups


def test_short_first_block_keeps_direct_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("fastloop.fastloader.large_files.usable_memory_bytes", lambda: 12 << 20)
    path, count = tmp_path / "rows.npy", 8 * 16 + 9
    np.lib.format.open_memmap(path, "w+", np.int64, (count, 8192))[:, 5] = np.arange(count)
    settings = {"num_threads": 1, "prefetch_factor": 1, "shuffle": Blocks(16)}
    loader = FastLoader(np.load(path, mmap_mode="r"), 8, **settings)
    firsts = set()
    for epoch in range(40):
        firsts.add(len(next(loader._epochs.order.pieces(epoch))))
        source, _ = plan_epoch(loader, epoch)
        assert isinstance(source, ColumnSource)
        assert isinstance(source.columns[0], DirectColumn)
    assert firsts == {8, 16}
    assert sorted(torch.cat([batch[:, 5] for batch in loader]).tolist()) == list(range(count))


@pytest.mark.heavy
@pytest.mark.parametrize("channels_last", [False, True])
def test_converted_column_of_a_large_file_uses_direct_reads(tmp_path, monkeypatch, channels_last):
    monkeypatch.setattr("fastloop.fastloader.large_files.usable_memory_bytes", lambda: 40 << 20)
    images = np.random.default_rng(0).integers(0, 256, (700, 3, 100, 105), np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    conversion = {"mean": (0.4, 0.5, 0.6), "std": 0.2, "channels_last": channels_last}
    column = pickle.loads(pickle.dumps(converted(mapped, **conversion)))
    assert len(pickle.dumps(column)) < 10_000
    settings = {"num_threads": 1, "prefetch_factor": 1, "shuffle": Blocks(10, 2)}
    loader = FastLoader((column, torch.arange(700)), 8, seed=0, **settings)
    source, _ = plan_epoch(loader, 0)
    assert isinstance(source, ColumnSource)
    assert [type(column) for column in source.columns] == [DirectColumn, ArrayColumn]
    reference = FastLoader(
        (converted(images, **conversion), torch.arange(700)), 8, seed=0, **settings
    )
    for batch, expected in zip(loader, reference, strict=True):
        assert torch.equal(batch[1], expected[1])
        assert torch.equal(batch[0], expected[0])
        assert batch[0].stride() == expected[0].stride()


def test_direct_column_names_a_truncated_file(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(100))
    rows = ArrayColumn(np.zeros((11, 10), np.uint8), SampleSpec(torch.uint8, (10,)))
    identity = FileIdentity.of(path.stat())
    region = FileRegion(str(path), 0, np.dtype(np.uint8), (11, 10), False, identity)
    column = DirectColumn(rows, region)
    column.fill(np.array([9]), np.empty((1, 10), np.uint8))
    with pytest.raises(OSError, match=f"{path}: the file ends at byte 100, within the rows"):
        column.fill(np.array([10]), np.empty((1, 10), np.uint8))


def test_memory_limits_include_those_of_parent_groups(tmp_path):
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


READ_FILE = """
import os, sys
import numpy as np
from fastloop.fastloader import Blocks, FastLoader
open(sys.argv[1], "w").write(str(os.getpid()))  # before that, torch's libraries may have to be read
rows = np.load(sys.argv[2], mmap_mode="r")
rank, world_size = map(int, sys.argv[3:])
loader = FastLoader(rows, 64, Blocks(128, 2), rank=rank, world_size=world_size)
print(sum(int(batch[:, 0].sum()) for batch in loader))
"""


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_file_larger_than_memory_is_read_within_the_limit(large_file, memory_group, world_size):
    """Each rank reads in a memory group with half the size of the file. Neither the process nor its
    page cache reaches the limit."""
    total = 0
    for rank in range(world_size):
        group = memory_group(512)
        arguments = [str(group / "cgroup.procs"), str(large_file), str(rank), str(world_size)]
        command = [sys.executable, "-c", READ_FILE, *arguments]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        total += int(process.stdout)
        statistics = (group / "memory.stat").read_text()
        assert int((group / "memory.failcnt").read_text()) == 0, statistics
    assert total == sum(range(16_384))
