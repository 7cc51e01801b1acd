"""A batch in memory that a process shares with its parent: its tensors and arrays one after
another, then the rest of it, pickled. The memory is that of an anonymous file.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop.fastloader.anonymous_file import create_file
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.pickle_around import pickle_around, unpickle_around

ALIGNMENT = 64
"""Bytes of a cache line, and a multiple of the size of any type of a tensor."""
SPARE_FACTOR = 1.25
"""New memory for a batch that did not fit is this many times as large as the batch, because the
next ones may be somewhat larger."""


class Place(NamedTuple):
    """The place of a tensor in memory."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides, in elements."""


def tensor_at(buffer: mmap.mmap | memoryview, place: Place) -> torch.Tensor:
    """The tensor at a place of the buffer. The tensor keeps the buffer alive; its storage has only
    the tensor's own bytes.
    """
    numel = torch.Size(place.shape).numel()
    if not numel:
        return torch.empty(place.shape, dtype=place.dtype, device="cpu")
    count = numel * place.dtype.itemsize
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=count, offset=place.offset)
    return flat.view(place.dtype).as_strided(place.shape, place.strides)


def align(nbytes: int) -> int:
    """The number, rounded up to a multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array, as bytes."""

    place: Place
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass
class BatchWriter:
    """Writes the batches of a process one after another, each into its own memory.

    Each memory has a number; with it, the parent asks to use the memory again.
    """

    memories: dict[int, mmap.mmap] = field(default_factory=dict)
    created: int = 0
    """Number of memories that were created so far."""
    number: int | None = None
    """Number of the memory for the batch that is being made; None: there is none yet."""
    used: int = 0
    """Bytes of this memory that are taken."""
    new_file: int | None = None
    """Descriptor of the batch's memory if the parent does not have it yet."""

    def open(self, number: int | None, left: Sequence[int] = ()) -> None:
        """Begin a batch in the memory of this number; None: it needs new memory.

        left: numbers of memories that are not used again, because forks of the parent keep them.
        """
        for other in left:
            del self.memories[other]
        self.number = number
        self.used = 0
        self.new_file = None

    def discard(self) -> None:
        """Forget the memory of a batch that has failed; the parent forgets it, too."""
        if self.number is not None:
            self.memories.pop(self.number, None)  # there is none if new memory was refused

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """A contiguous tensor in the batch's memory, without values; None if there is no room."""
        place = _contiguous(self.used, shape, dtype)
        end = self.used + _nbytes(place)
        if self.number is None or end > len(self.memory):
            return None
        self.used = align(end)
        return tensor_at(self.memory, place)

    @property
    def memory(self) -> mmap.mmap:
        """The batch's memory."""
        assert self.number is not None
        return self.memories[self.number]

    def write(self, batch: Tree) -> tuple[int, int]:
        """Write the batch, and return the offset and the size of its description, in bytes.

        Leaves (tensors and arrays) that lie in the memory already are not written again. The
        description has the rest of the batch, pickled, and the places of the leaves.
        """
        leaves: list[Any] = []
        skeleton = _pickle(batch, leaves)
        places, end = self._plan(leaves)
        described = pickle.dumps((skeleton, places), pickle.HIGHEST_PROTOCOL)
        # If the memory is too small, all leaves move to new memory, including those already
        # stacked.
        if self.number is None or end + len(described) > len(self.memory):
            places, end = self._plan(leaves, is_new=True)
            described = pickle.dumps((skeleton, places), pickle.HIGHEST_PROTOCOL)
            self._create(end + len(described))
        for leaf, place in zip(leaves, places, strict=True):
            _copy(leaf, self.memory, place)
        self.memory[end : end + len(described)] = described
        return end, len(described)

    def _plan(self, leaves: list[Any], is_new: bool = False) -> tuple[list[Any], int]:
        """The places of the leaves, and their end; is_new: in memory without any leaves."""
        end = 0 if is_new else self.used
        places = []
        for leaf in leaves:
            offset = None if is_new else self._offset(leaf)
            places.append(_place(leaf, end if offset is None else offset))
            if offset is None:
                end = align(end + _nbytes(places[-1]))
        return places, end

    def _offset(self, leaf: Any) -> int | None:
        """The leaf's offset if it lies in the batch's memory already; else None."""
        if self.number is None or not isinstance(leaf, torch.Tensor) or not leaf.is_contiguous():
            return None
        offset = leaf.data_ptr() - _address(self.memory)
        return offset if leaf.numel() and 0 <= offset < self.used else None

    def _create(self, nbytes: int) -> None:
        """Move the batch to new memory. The parent will not ask for the old memory again."""
        if self.number is not None:
            del self.memories[self.number]
            nbytes = int(SPARE_FACTOR * nbytes)
        file = create_file(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.number = self.created
        self.new_file = file
        self.memories[self.created] = mmap.mmap(file, 0)
        self.created += 1


def read_batch(buffer: memoryview, begin: int, nbytes: int) -> Tree:
    """The batch with a description of `nbytes` bytes that starts at `begin`. The batch's tensors
    and arrays keep the buffer alive."""
    skeleton, places = pickle.loads(buffer[begin : begin + nbytes])
    leaves = [_read(buffer, place) for place in places]
    return unpickle_around(skeleton, leaves)


def is_plain(tensor: torch.Tensor) -> bool:
    """True for a tensor that is described by its values, type and strides alone."""
    is_strided = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_strided or tensor.device.type != "cpu" or tensor.is_nested:
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _pickle(batch: Tree, leaves: list[Any]) -> bytes:
    """The batch without the tensors and arrays that are added to `leaves`."""
    numbers: dict[int, int] = {}

    def number_leaf(leaf: Any) -> int | None:
        if not _is_leaf(leaf):
            return None
        # A leaf that occurs twice in the batch is written once, and is one object when it is read.
        if id(leaf) not in numbers:
            numbers[id(leaf)] = len(leaves)
            leaves.append(leaf)
        return numbers[id(leaf)]

    return pickle_around(batch, number_leaf)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return is_plain(value)
    return type(value) is np.ndarray and value.flags.c_contiguous and not value.dtype.hasobject


def _place(leaf: Any, offset: int) -> Place | ArrayPlace:
    if isinstance(leaf, np.ndarray):
        bytes_ = _contiguous(offset, (leaf.nbytes,), torch.uint8)
        return ArrayPlace(bytes_, leaf.dtype, leaf.shape)
    if leaf.is_contiguous():
        return _contiguous(offset, leaf.shape, leaf.dtype)
    # empty_like keeps the strides of a dense tensor in another memory format, such as
    # channels_last.
    strides = torch.empty_like(leaf, device="meta").stride()
    return Place(offset, leaf.dtype, tuple(leaf.shape), strides)


def _contiguous(offset: int, shape: Sequence[int], dtype: torch.dtype) -> Place:
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        # torch has the same strides for a dimension of length 0.
        step *= max(1, length)
    return Place(offset, dtype, tuple(shape), tuple(reversed(strides)))


def _nbytes(place: Place | ArrayPlace) -> int:
    place = place.place if isinstance(place, ArrayPlace) else place
    return torch.Size(place.shape).numel() * place.dtype.itemsize


def _copy(leaf: Any, memory: mmap.mmap, place: Place | ArrayPlace) -> None:
    """Copy the leaf to its place, unless it lies there already."""
    if isinstance(place, ArrayPlace):
        _read(memoryview(memory), place)[...] = leaf
    elif leaf.numel() and leaf.data_ptr() != _address(memory) + place.offset:
        tensor_at(memory, place).copy_(leaf)


def _read(buffer: memoryview, place: Place | ArrayPlace) -> Any:
    if isinstance(place, Place):
        return tensor_at(buffer, place)
    bytes_ = tensor_at(buffer, place.place).numpy()
    # An array without bytes lies nowhere.
    if not len(bytes_):
        return np.empty(place.shape, place.dtype)
    return bytes_.view(place.dtype).reshape(place.shape)


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
