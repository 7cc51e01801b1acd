"""Rows converted to floats while they are loaded agree with torchvision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from fastloop import FastLoader, converted

SOURCES = [torch.uint8, torch.bool, torch.int16, torch.int64, torch.float16, torch.float64]
TARGETS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
MEANS, STDS = [0.5, 0.25, 0.1], [0.5, 0.3, 0.2]


def reference_conversion(source, dtype, scale, mean, std):
    """Result of torchvision in float64; mean and std per channel."""
    images = source.double() * scale
    return functional.normalize(images, mean, std).to(dtype)


def is_close(got, exact, largest):
    """True within the rounding of dtype and float32; largest: largest intermediate value."""
    eps = max(torch.finfo(got.dtype).eps, torch.finfo(torch.float32).eps)
    eps = torch.finfo(torch.float64).eps if got.dtype == torch.float64 else eps
    return (
        (got.double() - exact.double()).abs() <= 4 * eps * (largest + exact.double().abs())
    ).all()


@given(
    count=st.integers(1, 40),
    size=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5)),
    dtypes=st.tuples(st.sampled_from(SOURCES), st.sampled_from(TARGETS)),
    layouts=st.tuples(st.sampled_from(["CHW", "HWC"]), st.booleans()),
    per_channel=st.booleans(),
)
def test_conversion_agrees_with_torchvision(count, size, dtypes, layouts, per_channel):
    (source_dtype, dtype), (layout, channels_last) = dtypes, layouts
    images = torch.randint(0, 2 if source_dtype == torch.bool else 120, (count, *size))
    images = images.to(source_dtype)
    stored = images.movedim(1, -1).contiguous() if layout == "HWC" else images
    mean, std = (MEANS[: size[0]], STDS[: size[0]]) if per_channel else ([0.4], [0.25])
    scale = 1 / 255 if source_dtype == torch.uint8 else 1
    column = converted(
        stored, dtype, mean=mean, std=std, source_layout=layout, channels_last=channels_last
    )
    order = torch.randperm(count)
    got = torch.cat(list(FastLoader(column, 7, sampler=order)))
    exact = reference_conversion(images[order], dtype, scale, mean, std)
    assert got.dtype == dtype
    assert got.shape == exact.shape
    assert is_close(got, exact, largest=float((images.double() * scale).max() / min(std)) + 5)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_channels_last_batches_have_torchs_memory_format(layout):
    images = torch.randint(0, 255, (10, 3, 4, 5), dtype=torch.uint8)
    stored = images.movedim(1, -1).contiguous() if layout == "HWC" else images
    column = converted(stored, source_layout=layout, channels_last=True)
    for batch in FastLoader(column, 4):
        assert batch.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(batch, images[8:].float() / 255)


def test_converted_and_plain_columns_deliver_the_same_rows():
    rows = np.arange(200, dtype=np.uint8).reshape(-1, 1)
    labels = torch.arange(200)
    source = {"x": converted(rows, mean=3.0, std=2.0, scale=1.0), "same": rows, "label": labels}
    for batch in FastLoader(source, 16, shuffle=True, num_threads=3):
        assert torch.equal(batch["x"], (batch["same"] - 3.0) / 2)
        assert torch.equal(batch["same"][:, 0], batch["label"])


def test_default_scale_is_exact_within_one_ulp_for_every_byte():
    column = converted(torch.arange(256, dtype=torch.uint8))
    (batch,) = FastLoader(column, 256)
    exact = torch.arange(256, dtype=torch.float64) / 255
    assert ((batch.double() - exact).abs() <= exact * torch.finfo(torch.float32).eps).all()
    assert torch.equal((batch * 255).round().to(torch.uint8), torch.arange(256, dtype=torch.uint8))


@pytest.mark.parametrize("shape", [(), (6,), (28, 28), (2, 3, 4, 5), (0,)])
def test_conversion_accepts_rows_of_any_shape(shape):
    rows = torch.randint(0, 255, (20, *shape), dtype=torch.uint8)
    (batch,) = FastLoader(converted(rows, scale=2.0, mean=1.0, std=4.0), 20)
    torch.testing.assert_close(batch, (rows * 2.0 - 1.0) / 4.0)


def test_mean_may_differ_by_feature():
    rows = torch.randint(0, 255, (20, 3), dtype=torch.uint8)
    (batch,) = FastLoader(converted(rows, scale=1.0, mean=MEANS, std=2.0), 20)
    torch.testing.assert_close(batch, (rows - torch.tensor(MEANS)) / 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": torch.int32}, "dtype=torch.int32"),
        ({"mean": [1.0, 2.0]}, "mean: 2 numbers; one for all, or one for each of 3 channels"),
        ({"std": [1.0] * 4}, "std: 4 numbers"),
        ({"std": 0.0}, "std=0.0"),
        ({"std": math.nan}, "std=nan"),
        ({"std": [1.0, 1.0, math.nan]}, "std=.*nan"),
        ({"std": [math.nan, -1.0, 1.0]}, "std=.*nan"),
        ({"std": np.array([[1.0, 0.0, 1.0]])}, "std="),
        ({"source_layout": "WHC"}, "source_layout=WHC"),
    ],
)
def test_converted_rejects_invalid_arguments(settings, message):
    with pytest.raises(ValueError, match=message):
        converted(torch.zeros(4, 3, 2, 2, dtype=torch.uint8), **settings)


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1)])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_numbers_of_channels_may_be_an_array_or_a_tensor(kind, shape):
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).reshape(4, 3, 2, 2)
    (plain,) = FastLoader(converted(images, mean=MEANS, std=STDS), 4)
    settings = {"mean": kind(MEANS).reshape(shape), "std": kind(STDS).reshape(shape)}
    (given,) = FastLoader(converted(images, **settings), 4)
    assert torch.allclose(plain, given, rtol=1e-6)


def test_converted_rejects_channels_last_vectors_and_complex_numbers():
    with pytest.raises(ValueError, match="channels_last=True"):
        converted(torch.zeros(4, 3), channels_last=True)
    with pytest.raises(ValueError, match="complex64"):
        converted(torch.zeros(4, 3, dtype=torch.complex64))
