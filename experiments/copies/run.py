"""Conversions between numpy arrays and tensors: which copy, which share memory, at what cost?

The usual four are: torch.tensor and np.array copy (deep), torch.from_numpy and
.numpy() share (shallow). This table has all that are in use.

    python -m experiments.copies.run [rounds]

numpy 2 warns of `np.array(t)` but copies: torch's tensors don't support its argument `copy`.
The time of a call is the median over interleaved rounds with its 95 % interval, for float32 arrays
of 4 KiB and of 16 MiB; test_conversion_studies.py checks the columns memory and dtype.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fastloop.core import stats
from fastloop.core.interleave import rounds
from fastloop.core.spans import now_ns, seconds_between

SIZES = {"4 KiB": 1 << 10, "16 MiB": 1 << 22}
"""Number of float32 values in each array."""
ROUNDS = 15
BUDGET_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A conversion from an array to a tensor, or back."""

    convert: Callable[[Any], Any]
    shares: bool
    """True if a write to the array is visible in the tensor, and the reverse, for float32."""
    keeps_dtype: bool = True
    """False if the result has torch's default dtype."""


def copy_into_tensor(array: np.ndarray) -> torch.Tensor:
    """Copy an array into a new tensor with copy_."""
    return torch.empty(array.shape, dtype=torch.from_numpy(array).dtype).copy_(
        torch.from_numpy(array)
    )


def copy_into_array(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor into a new array with np.copyto."""
    out = np.empty(tensor.shape, tensor.numpy().dtype)
    np.copyto(out, tensor.numpy())
    return out


def tensor_from_buffer(array: np.ndarray) -> torch.Tensor:
    """Make a tensor over the array's memory by torch.frombuffer."""
    return torch.frombuffer(array, dtype=torch.from_numpy(array).dtype).reshape(array.shape)


TO_TORCH = {
    "torch.from_numpy(a)": Conversion(convert=torch.from_numpy, shares=True),
    "torch.as_tensor(a)": Conversion(convert=torch.as_tensor, shares=True),
    "torch.asarray(a)": Conversion(convert=torch.asarray, shares=True),
    "torch.frombuffer(a, dtype=…)": Conversion(convert=tensor_from_buffer, shares=True),
    "torch.from_dlpack(a)": Conversion(convert=torch.from_dlpack, shares=True),
    "torch.Tensor(a)": Conversion(convert=torch.Tensor, shares=True, keeps_dtype=False),
    "torch.tensor(a)": Conversion(convert=torch.tensor, shares=False),
    "torch.asarray(a, copy=True)": Conversion(
        convert=lambda array: torch.asarray(array, copy=True), shares=False
    ),
    "torch.from_numpy(a).clone()": Conversion(
        convert=lambda array: torch.from_numpy(array).clone(), shares=False
    ),
    "torch.from_numpy(a.copy())": Conversion(
        convert=lambda array: torch.from_numpy(array.copy()), shares=False
    ),
    "torch.empty(…).copy_(torch.from_numpy(a))": Conversion(convert=copy_into_tensor, shares=False),
}
TO_NUMPY = {
    "t.numpy()": Conversion(convert=lambda tensor: tensor.numpy(), shares=True),
    "t.numpy(force=True)": Conversion(convert=lambda tensor: tensor.numpy(force=True), shares=True),
    "np.asarray(t)": Conversion(convert=np.asarray, shares=True),
    "np.from_dlpack(t)": Conversion(convert=np.from_dlpack, shares=True),
    "np.array(t)": Conversion(convert=np.array, shares=False),
    "t.clone().numpy()": Conversion(convert=lambda tensor: tensor.clone().numpy(), shares=False),
    "np.copyto(np.empty(…), t.numpy())": Conversion(convert=copy_into_array, shares=False),
}
DIRECTIONS = {"numpy to torch": TO_TORCH, "torch to numpy": TO_NUMPY}
Key = tuple[str, str, str]
"""A direction, a conversion and a size."""


@dataclass(frozen=True, kw_only=True)
class ConversionTime:
    """The time of one conversion at one size."""

    direction: str
    conversion: str
    size: str
    microseconds: float
    interval: tuple[float, float] | None


def measure(num_rounds: int = ROUNDS) -> list[ConversionTime]:
    """A row for each conversion and size."""
    arrays = {size: np.ones(count, np.float32) for size, count in SIZES.items()}
    calls = {
        (direction, name, size): partial(conversion.convert, source_of(direction, array))
        for direction, conversions in DIRECTIONS.items()
        for name, conversion in conversions.items()
        for size, array in arrays.items()
    }
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    repeats = {key: count_repeats(call) for key, call in calls.items()}
    for _, keys in rounds(dict.fromkeys(calls, num_rounds)):
        for key in keys:
            seconds[key].append(seconds_per_call(calls[key], repeats[key]))
    return [row_of(key, values) for key, values in seconds.items()]


def source_of(direction: str, array: np.ndarray) -> Any:
    """The argument of a conversion in this direction: the array, or a tensor over its memory."""
    return array if direction == "numpy to torch" else torch.from_numpy(array)


def row_of(key: Key, seconds: list[float]) -> ConversionTime:
    """The row of a conversion with these times."""
    direction, conversion, size = key
    interval = stats.interval(seconds)
    return ConversionTime(
        direction=direction,
        conversion=conversion,
        size=size,
        microseconds=1e6 * stats.median(seconds),
        interval=(1e6 * interval[0], 1e6 * interval[1]) if interval else None,
    )


def count_repeats(call: Callable[[], Any]) -> int:
    """The number of calls that fill the budget, after two to warm up."""
    seconds_per_call(call, 2)
    return max(1, min(10_000, int(BUDGET_S / seconds_per_call(call, 1))))


def seconds_per_call(call: Callable[[], Any], repeats: int) -> float:
    """Seconds per call, over this many calls."""
    start = now_ns()
    for _ in range(repeats):
        call()
    return seconds_between(start, now_ns()) / repeats


def table(rows: list[ConversionTime]) -> str:
    """The rows in Markdown, a line for each conversion."""
    lines = [
        "| direction | conversion | memory | dtype |"
        + "".join(f" us, {size} [95 %] |" for size in SIZES),
        "|---|---|---|---|" + "---|" * len(SIZES),
    ]
    shown = {(row.direction, row.conversion, row.size): show(row) for row in rows}
    for direction, conversions in DIRECTIONS.items():
        for name, conversion in conversions.items():
            memory = "shared" if conversion.shares else "copied"
            dtype = "kept" if conversion.keeps_dtype else "torch's default"
            figures = [shown[direction, name, size] for size in SIZES]
            lines.append(f"| {' | '.join([direction, f'`{name}`', memory, dtype, *figures])} |")
    return "\n".join(lines)


def show(row: ConversionTime) -> str:
    """A row of the table in Markdown."""
    bounds = f" [{row.interval[0]:.3g}, {row.interval[1]:.3g}]" if row.interval else ""
    return f"{row.microseconds:.3g}{bounds}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
    print(table(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)))
