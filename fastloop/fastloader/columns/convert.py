"""Columns of rows that are converted to floats as they are gathered, made by `converted`.

If a loop converts its batches, each operation reads and writes the whole batch in memory once more.
The native core gathers, converts and scales a row while the row is in the processor's cache. Memory
is read once, in the dtype of the source, and written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fastloop.fastloader.columns.array import ArrayColumn, array_column
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.native_rows import (
    SOURCE_TYPES,
    Conversion,
    NativeRows,
    fill_rows,
    has_native_form,
)

NATIVE_TARGETS = torch.float32, torch.bfloat16, torch.float16
"""The dtypes to which the native core converts; torch converts to others."""


@dataclass(frozen=True, eq=False)
class ConvertedColumn:
    """Rows as floats, multiplied by a factor and shifted by an offset; see `converted`."""

    rows: ArrayColumn
    """The rows of the source."""
    spec: SampleSpec
    """Dtype and shape of the converted samples."""
    source_layout: Literal["CHW", "HWC"]
    """The place of the channels in the rows of the source: first or last."""
    factor: torch.Tensor
    """(1,) or (channels,): one number, or one for each channel."""
    offset: torch.Tensor
    """The numbers to add, of the same shape as `factor`."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the converted rows at `indices` to `out`, see `Column.fill`."""
        if not self.spec.nbytes or fill_rows(self, indices, out):
            return
        # Without the core, all rows are gathered first, and converted afterwards.
        gathered = np.empty((len(indices), self.rows.spec.nbytes), np.uint8)
        self.rows.fill(indices, gathered)
        rows = self.rows.spec.view_tensor(gathered)
        if self.source_layout == "HWC":
            rows = rows.movedim(-1, 1)
        _convert_rows(rows, self.factor, self.offset, self.spec.view_tensor(out))

    def native_rows(self) -> NativeRows | None:
        """The rows for the native core; None if it can't convert them."""
        rows = self.rows
        spec = self.spec
        if spec.dtype not in NATIVE_TARGETS or rows.spec.dtype not in SOURCE_TYPES:
            return None
        if not has_native_form(rows.flat, spec):
            return None
        channels, pixels = math.prod(spec.shape[:1]), math.prod(spec.shape[1:])
        # If each channel has a single item, both layouts are the same. The core is faster if they
        # are described as channels last.
        is_vector = pixels == 1
        is_last = is_vector or self.source_layout == "HWC"
        becomes_last = is_vector or spec.channels_last
        conversion = Conversion(
            source=rows.spec.dtype,
            target=spec.dtype,
            channels=channels,
            pixels=pixels,
            is_last=is_last,
            becomes_last=becomes_last,
            factor=self.factor.numpy(),
            offset=self.offset.numpy(),
        )
        return NativeRows(
            memory=rows.flat,
            num_rows=len(rows),
            spec=spec,
            source_nbytes=rows.spec.nbytes,
            stride=rows.spec.nbytes,
            conversion=conversion,
            file=rows.file,
        )


def converted(  # noqa: PLR0913 - the parameters have torch's and torchvision's own names
    source: torch.Tensor | np.ndarray,
    dtype: torch.dtype = torch.float32,
    *,
    scale: float | None = None,
    mean: float | Sequence[float] | np.ndarray = 0.0,
    std: float | Sequence[float] | np.ndarray = 1.0,
    source_layout: Literal["CHW", "HWC"] = "CHW",
    channels_last: bool = False,
) -> ConvertedColumn:
    """A column of (source * scale - mean) / std in `dtype`, computed as its rows are gathered.

    Args:
        source: integers, bools or floats of shape (num_samples, channels, ...), or with
            source_layout="HWC" (num_samples, ..., channels). Samples are delivered as
            (channels, ...).
        dtype: a floating-point dtype.
        scale: None means 1/255 for a uint8 source and 1 for others, as torchvision's
            ToDtype(scale=True).
        mean, std: one number, or one per channel.
        channels_last: deliver samples in torch's memory_format channels_last.

    The values equal those of torchvision's to_dtype and normalize, except for rounding: scale, mean
    and std are merged into one multiplication and one addition, computed in at least float32.
    Raises ValueError for an invalid dtype or layout, a std that is not positive, a mean or std with
    neither one number nor one per channel, a complex source, and a source that `FastLoader` would
    not accept. Raises TypeError for an array of a dtype that torch lacks.

    >>> images = converted(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), mean=[0.5, 0.5, 0.5])
    >>> loader = FastLoader((images, torch.arange(10)), batch_size=5, shuffle=True)
    """
    rows = array_column(source)
    shape = rows.spec.shape
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype}: allowed are torch.float32 and other floats")
    if rows.spec.dtype.is_complex:
        raise ValueError(f"a source of {rows.spec.dtype}: real numbers are converted")
    if source_layout not in ("CHW", "HWC"):
        raise ValueError(f"source_layout={source_layout}: allowed are CHW and HWC")
    if source_layout == "HWC":
        shape = shape[-1:] + shape[:-1]
    if channels_last and len(shape) != 3:
        raise ValueError(f"channels_last=True: samples have three dimensions, got {shape}")
    if scale is None:
        scale = 1 / 255 if rows.spec.dtype == torch.uint8 else 1.0
    means, stds = _channel_values("mean", mean, shape), _channel_values("std", std, shape)
    # Each number is tested by itself, because min() may miss a NaN.
    if not all(each > 0 for each in stds):
        raise ValueError(f"std={std}: allowed are numbers above 0")
    spec = SampleSpec(dtype, shape, channels_last)
    # If mean has a number for each channel and std a single one, or the reverse, the single number
    # is used for all channels.
    count = max(len(means), len(stds))
    means, stds = means * (count // len(means)), stds * (count // len(stds))
    # The computation uses at least float32. In bfloat16, the error for a mean of 120 is 0.3.
    compute_dtype = torch.promote_types(dtype, torch.float32)
    factors = [scale / each for each in stds]
    offsets = [-mean / std for mean, std in zip(means, stds, strict=True)]
    return ConvertedColumn(
        rows,
        spec,
        source_layout,
        factor=torch.tensor(factors, dtype=compute_dtype, device="cpu"),
        offset=torch.tensor(offsets, dtype=compute_dtype, device="cpu"),
    )


def _channel_values(
    name: str, value: float | Sequence[float] | np.ndarray, shape: tuple[int, ...]
) -> list[float]:
    """The numbers of `mean` or `std`: one, or one for each channel; raises ValueError for others.

    name: the parameter's name in the message. shape: the samples' shape, (channels, ...).
    """
    if isinstance(value, Sequence):
        values = [float(each) for each in value]
    else:
        values = torch.as_tensor(value, dtype=torch.float64, device="cpu").flatten().tolist()
    if len(values) not in {1, *shape[:1]}:
        channels = shape[0] if shape else 0
        allowed = f"one for all, or one for each of {channels} channels"
        raise ValueError(f"{name}: {len(values)} numbers; {allowed}")
    return values


def _convert_rows(
    rows: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor, result: torch.Tensor
) -> None:
    """Write rows * factor + offset to `result`.

    rows, result: (batch_size, channels, ...). factor, offset: one number, or one for each channel.
    The computation uses factor's dtype. The product is rounded before the sum, as in the native
    core, so the bits are the same.
    """
    is_in_place = result.dtype == factor.dtype
    floats = result if is_in_place else torch.empty_like(result, dtype=factor.dtype)
    # The conversion is an operation of its own. If the multiplication converted the rows, torch
    # would make a temporary copy.
    floats.copy_(rows)
    if len(factor) > 1:
        shape = len(factor), *(1 for _ in result.shape[2:])
        floats.mul_(factor.view(shape)).add_(offset.view(shape))
    elif factor != 1 or offset != 0:
        # For factor 1 and offset 0 nothing is computed: adding 0 would change -0.0 to 0.0.
        floats.mul_(factor).add_(offset)
    if not is_in_place:
        result.copy_(floats)
