"""The native core makes the rows, conversions and windows of numpy and torch, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from native_core import needs_core

from fastloop import Windows, converted
from fastloop.fastloader.batch_memory import open_pool
from fastloop.fastloader.columns import array, convert, windows
from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.columns.native_rows import gather_into, open_column
from fastloop.fastloader.feistel import random_permutation
from fastloop.fastloader.load_native_core import load_core
from fastloop.fastloader.native_order import (
    FeistelOrder,
    SeededOrder,
    SourceOrder,
    open_order,
    read_order,
)
from fastloop.fastloader.native_stream import (
    Delivery,
    MemoryPools,
    StreamPlan,
    open_columns,
    open_stream,
)

pytestmark = needs_core
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
CONVERTED = [dtype for dtype in DTYPES[:-2] if dtype != torch.uint64]


def random_rows(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Rows of random bytes."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.uint8).bool()
    words = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return words.flatten().view(dtype).reshape(shape)


def random_numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Rows of numbers that the type can hold, without infinities."""
    if not dtype.is_floating_point:
        return random_rows(dtype, *shape)
    return (100 * torch.randn(shape)).to(dtype)


def as_bits(rows: torch.Tensor) -> np.ndarray:
    """The bytes, which compare equal also where they are no number."""
    return rows.contiguous().flatten().view(torch.uint8).numpy()


def stream_of(leaves, order, batch_size: int, pool=None, start: int = 0, **settings):
    columns = open_columns(
        [
            array_column(leaf) if isinstance(leaf, torch.Tensor | np.ndarray) else leaf
            for leaf in leaves
        ]
    )
    assert columns is not None
    plan = StreamPlan(columns=columns, batch_size=batch_size, **settings)
    return open_stream(plan, order, MemoryPools(pool or open_pool()), Delivery(start=start))


def reference_batches(indices: np.ndarray, batch_size: int, drop_last: bool) -> list[np.ndarray]:
    starts = range(0, len(indices), batch_size)
    batches = [indices[start : start + batch_size] for start in starts]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


@st.composite
def orders(draw, count: int):
    """(order, its indices) of this many samples."""
    rank = draw(st.integers(0, 2))
    world_size = draw(st.integers(rank + 1, 3))
    positions = np.arange(rank, rank + -(-count // world_size) * world_size, world_size) % count
    seed = draw(st.integers(0, 2**64 - 1))
    generator = torch.Generator().manual_seed(seed % 2**63)
    kind = draw(st.sampled_from(["array", "fed", "sequential", "seeded", "feistel"]))
    if kind == "sequential":
        return SourceOrder(count, rank, world_size), positions
    if kind == "seeded":
        permutation = torch.randperm(count, generator=generator).numpy()
        return SeededOrder(count, seed % 2**63, rank, world_size), permutation[positions]
    if kind == "feistel":
        permutation = random_permutation(count, generator)
        return FeistelOrder(permutation, rank, world_size), permutation.indices_at(positions)
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    length = draw(st.integers(0, 3 * count))
    indices = np.random.default_rng(seed).integers(count, size=length).astype(dtype)
    if draw(st.booleans()):
        indices = indices[::2]  # as a rank's share
    if kind == "array":
        return indices, indices
    cuts = sorted(draw(st.lists(st.integers(0, len(indices)), max_size=5)))
    return ((piece, None) for piece in np.split(indices, cuts)), indices


@given(
    data=st.data(),
    count=st.integers(1, 700),
    shape=st.lists(st.integers(0, 7), max_size=3),
    dtype=st.sampled_from(DTYPES),
    batching=st.tuples(st.integers(1, 200), st.booleans()),
    num_threads=st.integers(0, 3),
)
def test_batches_are_the_rows_of_any_order(data, count, shape, dtype, batching, num_threads):
    batch_size, drop_last = batching
    rows, labels = random_rows(dtype, count, *shape), torch.arange(count)
    order, indices = data.draw(orders(count))
    settings = {"drop_last": drop_last, "num_threads": num_threads}
    got = list(stream_of((rows, labels), order, batch_size, **settings))
    expected = reference_batches(indices, batch_size, drop_last)
    assert [batch[1].tolist() for batch in got] == [batch.tolist() for batch in expected]
    for (batch, _), index in zip(got, expected, strict=True):
        assert batch.dtype == dtype
        assert batch.shape == (len(index), *shape)
        assert batch.is_contiguous()
        assert np.array_equal(as_bits(batch), as_bits(rows[torch.from_numpy(index).long()]))


@given(
    sizes=st.lists(st.integers(0, 40), max_size=60),
    cut=st.integers(0, 60),
    num_threads=st.integers(0, 2),
)
def test_batches_have_the_sizes_that_come_with_their_indices(sizes, cut, num_threads):
    rows = torch.arange(1000)
    indices = np.random.default_rng(0).integers(1000, size=sum(sizes))
    parts = np.split(indices, [sum(sizes[:cut])])
    pieces = zip(
        parts, (np.array(part, np.int64) for part in (sizes[:cut], sizes[cut:])), strict=True
    )
    got = list(stream_of((rows,), iter([*pieces]), 0, num_threads=num_threads))
    expected = np.split(indices, np.cumsum(sizes)[:-1]) if sizes else []
    assert [batch.tolist() for (batch,) in got] == [part.tolist() for part in expected]


@pytest.mark.parametrize("row_nbytes", [1, 2, 3, 8, 15, 16, 17, 100, 256, 257, 5000, 200_000])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_rows_of_every_size_are_copied(row_nbytes, num_threads):
    rows = random_rows(torch.uint8, 300, row_nbytes)[:, :row_nbytes]
    order = torch.randperm(300).numpy()
    (got,) = stream_of((rows[1:],), order % 299, 300, num_threads=num_threads)  # unaligned
    assert torch.equal(got[0], rows[1:][torch.from_numpy(order % 299)])


@pytest.mark.parametrize("batch_size", [101, 10**9, 2**62, 2**70])
def test_batch_size_may_exceed_the_number_of_samples(batch_size):
    rows, indices = torch.rand(100, 5), np.arange(99, -1, -1)
    for order in (indices, iter([(indices, None)])):
        (got,) = stream_of((rows,), order, batch_size)
        assert torch.equal(got[0], rows.flip(0))
    assert list(stream_of((rows,), indices, batch_size, drop_last=True)) == []


@pytest.mark.parametrize("start", [0, 1, 64, 99, 100])
def test_an_order_is_continued_in_its_middle(start):
    rows = torch.arange(100)
    permutation = torch.randperm(100, generator=torch.Generator().manual_seed(3))
    got = [batch for (batch,) in stream_of((rows,), SeededOrder(100, 3), 8, start=start)]
    assert torch.equal(torch.cat([rows[:0], *got]), permutation[start:])


SEEDS = [0, 1, 2**31, 2**32 - 1, 2**32 + 5, 2**63 - 1]


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 623, 624, 625, 1249, 60_000, 1_000_003])
def test_seeded_order_is_torch_randperm_bit_by_bit(count):
    for seed in SEEDS if count < 10**5 else SEEDS[:2]:
        order = open_order(SeededOrder(count, seed), count)
        generator = torch.Generator().manual_seed(seed)
        for dtype in (torch.int32, torch.int64):
            expected = torch.randperm(count, generator=generator.manual_seed(seed), dtype=dtype)
            assert np.array_equal(read_order(order, 0, count), expected.numpy())


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(1, 4))
def test_feistel_order_is_the_permutation_of_python(count, seed, world_size):
    permutation = random_permutation(count, torch.Generator().manual_seed(seed))
    for rank in range(world_size):
        expected = np.concatenate(list(permutation.pieces(rank, world_size)))
        order = open_order(FeistelOrder(permutation, rank, world_size), count)
        assert np.array_equal(read_order(order, 0, len(expected)), expected)


def test_feistel_order_indexes_more_samples_than_memory_holds():
    permutation = random_permutation(2**33 + 1, torch.Generator().manual_seed(0))
    order = open_order(FeistelOrder(permutation), 2**33 + 1)
    positions = np.arange(2**33 - 1000, 2**33 + 1)
    assert np.array_equal(
        read_order(order, int(positions[0]), 1001), permutation.indices_at(positions)
    )


def python_rows(column, indices: np.ndarray) -> np.ndarray:
    """What the column's Python code makes."""
    before = {module: module.fill_rows for module in (array, convert, windows)}
    for module in before:
        module.fill_rows = lambda *arguments: False
    try:
        out = np.zeros((len(indices), column.spec.nbytes), np.uint8)
        column.fill(indices, out)
        return out
    finally:
        for module, fill_rows in before.items():
            module.fill_rows = fill_rows


def native_rows(column, indices: np.ndarray, num_threads: int = 1) -> np.ndarray:
    native = open_column(column)
    assert native is not None
    out = np.zeros((len(indices), column.spec.nbytes), np.uint8)
    gather_into([native], indices, [out], num_threads)
    return out


LAYOUTS = [*itertools.product(["CHW", "HWC"], [False, True])]


@pytest.mark.parametrize("target", convert.NATIVE_TARGETS, ids=str)
@pytest.mark.parametrize("source", CONVERTED, ids=str)
@pytest.mark.parametrize(("layout", "channels_last"), LAYOUTS)
def test_conversion_has_the_bits_of_torch(source, target, layout, channels_last):
    # equal bits: product and sum are rounded one after the other here and there
    for channels, per_channel in itertools.product([1, 3, 4, 1030], [False, True]):
        size = (5, 3) if channels > 4 else (21, 19)
        shape = (*size, channels) if layout == "HWC" else (channels, *size)
        rows = random_numbers(source, 6, *shape)
        numbers = torch.linspace(0.1, 2, channels).tolist() if per_channel else 0.3
        settings = {"mean": numbers, "std": numbers, "source_layout": layout, "scale": 1 / 255}
        column = converted(rows, target, channels_last=channels_last, **settings)
        indices = np.array([5, 0, 0, 3, 2])
        assert np.array_equal(native_rows(column, indices), python_rows(column, indices))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (30,), (2, 3, 4, 5), (0,), (3, 0)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_conversion_of_samples_of_any_shape_has_the_bits_of_torch(shape, per_channel):
    rows = random_numbers(torch.float32, 50, *shape)
    many = per_channel and bool(shape) and shape[0] > 0
    std = [1.0 + k for k in range(shape[0])] if many else 2.0
    column, indices = converted(rows, std=std), np.arange(49, -1, -1)
    assert np.array_equal(native_rows(column, indices), python_rows(column, indices))


def test_every_half_and_its_neighbours_are_rounded_as_by_torch():
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    column = converted(halves, torch.float32, scale=1.0)
    got = torch.from_numpy(native_rows(column, np.arange(2**16)).view(np.float32)[:, 0])
    assert torch.equal(got.nan_to_num(7.0), halves.float().nan_to_num(7.0))
    floats = halves.float()
    between = torch.cat([(floats[1:] + floats[:-1]) / 2, floats])
    around = torch.stack([between, between.nextafter(between + 1), between.nextafter(between - 1)])
    for target in (torch.float16, torch.bfloat16):
        column = converted(around.flatten(), target, scale=1.0)
        got = native_rows(column, np.arange(len(column)))
        got = torch.from_numpy(got.reshape(-1)).view(target)
        expected = around.flatten().to(target)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


@given(
    dtype=st.sampled_from([np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64]),
    target=st.sampled_from([None, torch.int32, torch.int64]),
    length=st.integers(1, 70),
    stride=st.one_of(st.none(), st.integers(1, 60)),
    count=st.one_of(st.none(), st.integers(1, 300)),
    first_and_seed=st.tuples(st.integers(0, 5), st.integers(-(2**70), 2**70)),
)
def test_windows_are_those_of_python(dtype, target, length, stride, count, first_and_seed):
    first, seed = first_and_seed
    tokens = np.random.default_rng(0).integers(0, 255, size=400).astype(dtype)
    settings = {"count": count} if count else {"stride": stride}
    column = Windows(tokens, length, dtype=target, first=first, beyond=3, seed=seed, **settings)
    indices = np.random.default_rng(1).integers(len(column), size=90)
    assert np.array_equal(native_rows(column, indices), python_rows(column, indices))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_share_the_rows_of_gather_into(num_threads):
    rows, labels = torch.rand(5000, 300), torch.arange(5000)
    columns = [array_column(rows), converted((rows * 255).byte()), array_column(labels)]
    indices = torch.randperm(5000).numpy()[:4999]
    outs = [np.zeros((4999, column.spec.nbytes), np.uint8) for column in columns]
    gather_into([open_column(column) for column in columns], indices, outs, num_threads)
    assert np.array_equal(outs[0].view(np.float32), rows.numpy()[indices])
    assert np.array_equal(outs[1], python_rows(columns[1], indices))
    assert np.array_equal(outs[2].view(np.int64)[:, 0], indices)


@pytest.mark.parametrize("wrong", [100, -1, 2**31, 2**62, -(2**63)])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_index_out_of_bounds_is_named_at_its_batch(wrong, num_threads):
    rows = torch.rand(100, 3)
    indices = np.arange(100)
    indices[57] = wrong
    message = f"^index {wrong} is out of bounds for 100 samples$"
    for order in (indices, iter([(indices[:60], None), (indices[60:], None)])):
        stream = stream_of((rows,), order, 10, num_threads=num_threads)
        for start in range(0, 50, 10):
            assert torch.equal(next(stream)[0], rows[start : start + 10])
        with pytest.raises(IndexError, match=message):
            next(stream)
        assert next(stream, None) is None
    out = np.full((100, 12), 7, np.uint8)
    with pytest.raises(IndexError, match=message):
        gather_into([open_column(array_column(rows))], indices, [out], 2)
    assert (out == 7).all()


def test_memory_that_does_not_fit_is_refused():
    rows = torch.rand(100, 3)
    column = open_column(array_column(rows))
    with pytest.raises(ValueError, match="outs: 1188 bytes are fewer than the rows have"):
        gather_into([column], np.arange(100), [np.zeros((99, 12), np.uint8)])
    with pytest.raises(ValueError, match="outs: 0, allowed is one for each column"):
        gather_into([column], np.arange(100), [])
    with pytest.raises(ValueError, match="rows end at byte 1212, behind their buffer"):
        array_column(rows).native_rows()._replace(num_rows=101).open(load_core())
    with pytest.raises(ValueError, match="columns of one length are allowed, got 99 rows"):
        stream_of((rows, torch.arange(99)), np.arange(9), 3)


def test_columns_that_the_core_cannot_make_are_left_to_python():
    assert open_column(converted(torch.rand(4, 3), torch.float64)) is None
    assert open_column(Windows(np.arange(99)[::2], 4)) is None
    assert open_columns([array_column(torch.zeros(4).to(torch.float8_e4m3fn))]) is None


def test_settings_that_the_core_cannot_follow_are_refused():
    rows = torch.arange(10)
    with pytest.raises(ValueError, match="start=11: outside of the order"):
        stream_of((rows,), SeededOrder(10, 0), 3, start=11)
    with pytest.raises(ValueError, match="batch_size=0: allowed is 1 or more"):
        stream_of((rows,), SeededOrder(10, 0), 0)
    with pytest.raises(ValueError, match="num_samples=214748364: allowed are fewer"):
        open_order(SeededOrder(214748364, 0), 10)
    with pytest.raises(ValueError, match="rank=3: allowed are 0 to world_size - 1"):
        open_order(SourceOrder(10, 3, 3), 10)
