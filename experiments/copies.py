"""Which ways between a numpy array and a tensor copy, which share the memory, and what is each?

Seed 002's table has four of them: torch.tensor and np.array copy (deep), torch.from_numpy and
.numpy() share (shallow). This one has all that are in use.

    python experiments/copies.py [rounds]

numpy 2 warns of `np.array(t)`, which it copies all the same: torch's tensors don't know its `copy`.
Time a call is the median over interleaved rounds with its 95 % interval, for float32 arrays of
4 KiB and of 16 MiB; what is said of memory and dtype is checked by tests/test_scripts.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch

from fastloop import stats
from fastloop.spans import now_ns, seconds_between

SIZES = {"4 KiB": 1 << 10, "16 MiB": 1 << 22}
"""float32 values of each."""
ROUNDS = 15
BUDGET_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to make a tensor of an array, or an array of a tensor."""

    convert: Callable[[Any], Any]
    shares: bool
    """True where what is written to one is read from the other; asked of float32."""
    keeps_dtype: bool = True
    """False where it becomes torch's default dtype."""


def into_pageable(array: np.ndarray) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.from_numpy(array).dtype).copy_(
        torch.from_numpy(array)
    )


def into_array(tensor: torch.Tensor) -> np.ndarray:
    out = np.empty(tensor.shape, tensor.numpy().dtype)
    np.copyto(out, tensor.numpy())
    return out


def of_buffer(array: np.ndarray) -> torch.Tensor:
    return torch.frombuffer(array, dtype=torch.from_numpy(array).dtype).reshape(array.shape)


TO_TORCH = {
    "torch.from_numpy(a)": Way(convert=torch.from_numpy, shares=True),
    "torch.as_tensor(a)": Way(convert=torch.as_tensor, shares=True),
    "torch.asarray(a)": Way(convert=torch.asarray, shares=True),
    "torch.frombuffer(a, dtype=…)": Way(convert=of_buffer, shares=True),
    "torch.from_dlpack(a)": Way(convert=torch.from_dlpack, shares=True),
    "torch.Tensor(a)": Way(convert=torch.Tensor, shares=True, keeps_dtype=False),
    "torch.tensor(a)": Way(convert=torch.tensor, shares=False),
    "torch.asarray(a, copy=True)": Way(
        convert=lambda array: torch.asarray(array, copy=True), shares=False
    ),
    "torch.from_numpy(a).clone()": Way(
        convert=lambda array: torch.from_numpy(array).clone(), shares=False
    ),
    "torch.from_numpy(a.copy())": Way(
        convert=lambda array: torch.from_numpy(array.copy()), shares=False
    ),
    "torch.empty(…).copy_(torch.from_numpy(a))": Way(convert=into_pageable, shares=False),
}
TO_NUMPY = {
    "t.numpy()": Way(convert=lambda tensor: tensor.numpy(), shares=True),
    "t.numpy(force=True)": Way(convert=lambda tensor: tensor.numpy(force=True), shares=True),
    "np.asarray(t)": Way(convert=np.asarray, shares=True),
    "np.from_dlpack(t)": Way(convert=np.from_dlpack, shares=True),
    "np.array(t)": Way(convert=np.array, shares=False),
    "t.clone().numpy()": Way(convert=lambda tensor: tensor.clone().numpy(), shares=False),
    "np.copyto(np.empty(…), t.numpy())": Way(convert=into_array, shares=False),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one way took at one size."""

    direction: str
    way: str
    size: str
    microseconds: float
    interval: tuple[float, float] | None


def measure(rounds: int = ROUNDS) -> list[Row]:
    """A row for each way and size."""
    arrays = {size: np.ones(count, np.float32) for size, count in SIZES.items()}
    ways = {
        **{("numpy to torch", name): way for name, way in TO_TORCH.items()},
        **{("torch to numpy", name): way for name, way in TO_NUMPY.items()},
    }
    cells = {
        (*key, size): (
            way.convert,
            array if key[0] == "numpy to torch" else torch.from_numpy(array),
        )
        for key, way in ways.items()
        for size, array in arrays.items()
    }
    seconds: dict[Any, list[float]] = {key: [] for key in cells}
    calls = {key: calls_for(*cell) for key, cell in cells.items()}
    order, keys = Random(0), list(cells)
    for _ in range(rounds):
        order.shuffle(keys)
        for key in keys:
            seconds[key].append(seconds_a_call(*cells[key], calls[key]))
    return [row_of(*key, seconds[key]) for key in cells]


def row_of(direction: str, way: str, size: str, seconds: list[float]) -> Row:
    interval = stats.interval(seconds)
    return Row(
        direction=direction,
        way=way,
        size=size,
        microseconds=1e6 * stats.median(seconds),
        interval=(1e6 * interval[0], 1e6 * interval[1]) if interval else None,
    )


def calls_for(convert: Callable[[Any], Any], source: Any) -> int:
    seconds_a_call(convert, source, 2)
    return max(1, min(10_000, int(BUDGET_S / seconds_a_call(convert, source, 1))))


def seconds_a_call(convert: Callable[[Any], Any], source: Any, calls: int) -> float:
    start = now_ns()
    for _ in range(calls):
        convert(source)
    return seconds_between(start, now_ns()) / calls


def table(rows: list[Row]) -> str:
    """The rows in Markdown, a way a line."""
    sizes = list(SIZES)
    lines = [
        "| direction | way | memory | dtype |" + "".join(f" us, {one} [95 %] |" for one in sizes),
        "|---|---|---|---|" + "---|" * len(sizes),
    ]
    for direction, ways in (("numpy to torch", TO_TORCH), ("torch to numpy", TO_NUMPY)):
        for name, way in ways.items():
            own = {row.size: row for row in rows if (row.direction, row.way) == (direction, name)}
            memory = "shared" if way.shares else "its own"
            dtype = "kept" if way.keeps_dtype else "torch's default"
            cells = [direction, f"`{name}`", memory, dtype, *(shown(own[size]) for size in sizes)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(row: Row) -> str:
    bounds = f" [{row.interval[0]:.3g}, {row.interval[1]:.3g}]" if row.interval else ""
    return f"{row.microseconds:.3g}{bounds}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
    print(table(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)))
