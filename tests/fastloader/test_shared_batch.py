"""A batch is the same after its way through shared memory, whatever it consists of."""

from __future__ import annotations

import os
from collections import OrderedDict, namedtuple
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from fastloop.fastloader.anonymous_file import create_file, map_file
from fastloop.fastloader.shared_batch import BatchWriter, read_batch

Named = namedtuple("Named", "first second")
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape))).view(shape).to(dtype),
    SHAPES,
    st.sampled_from(DTYPES),
)
ARRAYS = st.builds(
    lambda shape, dtype: np.arange(int(np.prod(shape))).reshape(shape).astype(dtype),
    SHAPES,
    st.sampled_from(["u1", "i8", "f4", ">i4", "U7", "S3", "M8[s]", "c16", "O"]),
)
LEAVES = st.one_of(TENSORS, ARRAYS, st.integers(), st.text(), st.none(), st.binary())
TREES = st.recursive(
    LEAVES,
    lambda trees: st.one_of(
        st.lists(trees, max_size=3),
        st.dictionaries(st.text(max_size=3), trees, max_size=3),
        st.tuples(trees, trees),
        st.builds(Named, trees, trees),
        st.builds(lambda tree: OrderedDict(x=tree), trees),
    ),
    max_leaves=8,
)


def assert_same(batch, expected) -> None:
    leaves, structure = pytree.tree_flatten(batch)
    others, other_structure = pytree.tree_flatten(expected)
    assert structure == other_structure
    for leaf, other in zip(leaves, others, strict=True):
        assert type(leaf) is type(other)
        if isinstance(leaf, torch.Tensor):
            assert leaf.dtype == other.dtype
            assert leaf.stride() == other.stride()
            assert torch.equal(leaf, other)
        elif isinstance(leaf, np.ndarray):
            assert leaf.dtype == other.dtype
            assert leaf.shape == other.shape
            assert leaf.tolist() == other.tolist()
        else:
            assert leaf == other


def write_and_read(writer: BatchWriter, number: int | None, batch):
    writer.open(number)
    begin, nbytes = writer.write(batch)
    return read_batch(memoryview(writer.memory), begin, nbytes)


@given(st.lists(TREES, min_size=1, max_size=4))
def test_batches_that_share_one_memory_are_the_same_afterwards(batches):
    """One after another, smaller and larger ones."""
    writer, number = BatchWriter(), None
    for batch in batches:
        assert_same(write_and_read(writer, number, batch), batch)
        number = writer.number
        assert [*writer.memories] == [number]


@given(st.lists(TENSORS, min_size=1, max_size=6), st.integers(0, 3))
def test_tensors_that_were_made_in_the_memory_are_not_moved(tensors, position):
    writer = BatchWriter()
    write_and_read(writer, None, [torch.zeros(1 << 16)])
    writer.open(0)
    made = [writer.take(tensor.shape, tensor.dtype) for tensor in tensors]
    for tensor, place in zip(tensors, made, strict=True):
        place.copy_(tensor)
    batch = [*chain.from_iterable(zip(made, tensors, strict=True))]
    batch.insert(position, "text")
    begin, nbytes = writer.write(batch)
    assert writer.new_file is None or begin == 0
    delivered = read_batch(memoryview(writer.memory), begin, nbytes)
    assert_same(delivered, batch)
    pointers = {leaf.data_ptr() for leaf in delivered if torch.is_tensor(leaf) and leaf.numel()}
    assert {tensor.data_ptr() for tensor in made if tensor.numel()} <= pointers


def test_leaves_have_storages_of_their_own_and_may_be_written_to():
    batch = [torch.zeros(5), torch.zeros(7), np.zeros(9)]
    first, second, third = write_and_read(BatchWriter(), None, batch)
    assert [leaf.untyped_storage().nbytes() for leaf in (first, second)] == [20, 28]
    first += 1
    third += 2
    assert second.tolist() == [0] * 7
    assert third.tolist() == [2] * 9
    assert [leaf.data_ptr() % 64 for leaf in (first, second)] == [0, 0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(6).view(2, 3).t(),
        torch.arange(6).view(2, 3)[:, 1],
        torch.arange(3).expand(4, 3),
        torch.tensor(3.5),
        torch.complex(torch.ones(3), torch.ones(3)).conj(),
        torch.zeros(3, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=[
        "channels_last",
        "transposed",
        "strided",
        "expanded",
        "scalar",
        "conj",
        "grad",
        "sparse",
        "parameter",
    ],
)
def test_unusual_tensors_keep_their_values(tensor):
    delivered = write_and_read(BatchWriter(), None, {"x": tensor})["x"]
    assert type(delivered) is type(tensor)
    assert torch.equal(delivered.to_dense(), tensor.to_dense())
    assert delivered.requires_grad == tensor.requires_grad
    if tensor.layout is torch.strided and tensor.dim() == 4:
        assert delivered.is_contiguous(memory_format=torch.channels_last)


def test_one_tensor_at_two_places_is_one_afterwards():
    tensor = torch.zeros(3)
    first, second = write_and_read(BatchWriter(), None, [tensor, tensor])
    assert first is second


def test_no_room_is_an_error_that_says_what_to_do():
    with pytest.raises(MemoryError, match=r"no shared memory of .* bytes .*smaller batch_size"):
        create_file(1 << 60)
    assert len(map_file(create_file(8192))) == 8192


@pytest.mark.parametrize("missing", [[], ["memfd_create"], ["memfd_create", "posix_fallocate"]])
def test_memory_can_be_mapped_twice_also_on_systems_that_lack_some_calls(missing, monkeypatch):
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    file = create_file(8192)
    first, second = map_file(os.dup(file)), map_file(file)
    first[8000:8003] = b"abc"
    assert second[8000:8003] == b"abc"
    assert len(second) == 8192
