"""The global generators of torch, numpy and `random`: seeded, saved, restored, and watched.

Saving numpy's or random's whole state takes tens of microseconds, as long as many samples. A
generator that nobody is expected to draw from is only watched: a copy of its memory takes less than
a microsecond, and changes with each draw.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

WORDS = 624
"""32-bit words of the state of a Mersenne Twister, which is behind all three generators."""
NUMPY_BYTES = 4 * WORDS + 4
"""numpy's state in memory: the words, and the place of the next one."""
NORMAL_BYTES = 16
"""The flag and the normal number that numpy keeps elsewhere: normal numbers are made in pairs."""
RANDOM_BYTES = 4 + 4 * WORDS
"""random's state in memory, after the head of its object: the place, and the words."""
IS_CPYTHON = sys.implementation.name == "cpython"


@dataclass(frozen=True)
class GlobalGenerator:
    """A generator that all of a process's threads share."""

    seed: Callable[[int], None]
    save: Callable[[], Any]
    restore: Callable[[Any], None]
    """Set the state that `save` has returned."""
    watch: Callable[[], Any]
    """Return a value that compares equal to earlier ones unless a number was drawn in between."""
    rewind: Callable[[Any], None]
    """Set the state that the generator had when `watch` returned this value."""


# torch.manual_seed would seed the generators of all devices as well, and torch.get_rng_state would
# read the generator of this thread, see PrivateDraws.
def _seed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _save_torch() -> torch.Tensor:
    return torch.default_generator.get_state()


def _restore_torch(state: torch.Tensor) -> None:
    torch.default_generator.set_state(state)


def _watch_torch() -> bytes:
    state = _save_torch()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _rewind_torch(watched: bytes) -> None:
    _restore_torch(torch.frombuffer(bytearray(watched), dtype=torch.uint8))


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed % 2**32)


def _memory(thing: object) -> int:
    """The address of an object after its head, as CPython lays it out."""
    return id(thing) + object.__basicsize__


def _find_kept_normal() -> int | None:
    """The place, in the memory of a RandomState, of the flag and of the normal number that numpy
    keeps for the next call of randn(); None if it can't be found."""
    state = np.random.RandomState(0)
    state.standard_normal()
    number = state.get_state()[4]  # pyright: ignore[reportArgumentType]
    size = type(state).__basicsize__ - object.__basicsize__
    if not IS_CPYTHON or size <= 0:
        return None
    memory = ctypes.string_at(_memory(state), size)
    # The flag, an int, is padded to the size of the number after it.
    place = memory.find(struct.pack("<iid", 1, 0, number))
    return None if place < 0 else place


def _watch_numpy() -> bytes:
    shared: Any = np.random.mtrand._rand
    generator = shared._bit_generator
    # A program may have set a generator of another kind, with a state of another size.
    if type(generator) is not np.random.MT19937 or _kept_normal is None:
        return pickle.dumps(np.random.get_state(legacy=False))
    words = ctypes.string_at(generator.ctypes.state_address, NUMPY_BYTES)
    return words + ctypes.string_at(_memory(shared) + _kept_normal, NORMAL_BYTES)


def _rewind_numpy(watched: bytes) -> None:
    generator: Any = np.random.mtrand._rand._bit_generator  # pyright: ignore[reportAttributeAccessIssue]
    if type(generator) is not np.random.MT19937:
        generator.state = pickle.loads(watched)
    elif len(watched) != NUMPY_BYTES + NORMAL_BYTES:
        np.random.set_state(pickle.loads(watched))
    else:
        *words, place, has_normal, _, normal = struct.unpack(f"<{WORDS}Iiiid", watched)
        key = np.array(words, np.uint32)
        np.random.set_state(("MT19937", key, place, has_normal, normal))


def _random_memory() -> tuple[bytes, float | None]:
    """The state of `random` as CPython keeps it, and the normal number that is kept for later."""
    shared: Any = random._inst  # pyright: ignore[reportAttributeAccessIssue]
    return ctypes.string_at(_memory(shared), RANDOM_BYTES), shared.gauss_next


def _is_readable() -> bool:
    """True if the state of `random` lies at the place that CPython gives it."""
    shared = getattr(random, "_inst", None)
    least = object.__basicsize__ + RANDOM_BYTES
    if not IS_CPYTHON or shared is None or type(shared).__basicsize__ < least:
        return False
    _, words, gauss = random.getstate()
    expected = struct.pack(f"<i{WORDS}I", words[-1], *words[:-1])
    return _random_memory() == (expected, gauss)


def _rewind_random(watched: tuple[bytes, float | None]) -> None:
    place, *words = struct.unpack(f"<i{WORDS}I", watched[0])
    random.setstate((random.getstate()[0], (*words, place), watched[1]))


# Other interpreters than CPython, and future versions of it or of numpy, may keep the generators'
# states elsewhere.
_reads_memory = _is_readable()
_kept_normal = _find_kept_normal()

GENERATORS = {
    "torch": GlobalGenerator(_seed_torch, _save_torch, _restore_torch, _watch_torch, _rewind_torch),
    "numpy": GlobalGenerator(
        _seed_numpy, np.random.get_state, np.random.set_state, _watch_numpy, _rewind_numpy
    ),
    "random": GlobalGenerator(
        random.seed,
        random.getstate,
        random.setstate,
        _random_memory if _reads_memory else random.getstate,
        _rewind_random if _reads_memory else random.setstate,
    ),
}
"""The generators by the name of their library."""
