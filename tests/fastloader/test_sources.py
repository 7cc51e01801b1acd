"""Sources of every memory layout, and the errors for invalid sources and settings."""

from __future__ import annotations

import copy
import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, TensorDataset

from fastloop import FastLoader, converted
from fastloop.fastloader.columns.pixel_format import pixel_format

NUMBERS = np.arange(12.0)
SHAPES = {
    "column of a Fortran-ordered array": np.asfortranarray(NUMBERS.reshape(6, 2))[:, :1],
    "transposed column": torch.arange(6.0).reshape(1, 6).t(),
    "row of a Fortran-ordered array": np.asfortranarray(NUMBERS.reshape(3, 4))[:1],
    "negative stride": NUMBERS[::-1],
    "no rows": np.zeros((0, 2)),
    "empty by a mask": NUMBERS.reshape(6, 2)[np.zeros(6, bool)],
    "conjugated": torch.arange(4.0).mul(1j).conj(),
    "negated": torch.arange(4.0).mul(1j).conj().imag,
}


@pytest.mark.parametrize("mode", ["view", "copied", "gathered"])
@pytest.mark.parametrize("name", SHAPES)
def test_loader_delivers_rows_of_any_memory_layout(name, mode):
    source = SHAPES[name]
    settings = {"view": {"copy": False}, "gathered": {"sampler": range(len(source))}}
    expected = torch.as_tensor(source.copy()) if isinstance(source, np.ndarray) else source
    batches = list(FastLoader(source, 4, **settings.get(mode, {})))
    assert torch.equal(torch.cat(batches) if batches else expected[:0], expected)


def test_tensor_that_is_read_can_not_be_resized():
    """Its memory would be freed while threads read it."""
    rows = torch.arange(8.0).view(4, 2)
    first = next(iter(FastLoader(rows, 2)))
    with pytest.raises(RuntimeError, match="not resizable"):
        rows.resize_(1000, 2)
    assert torch.equal(first, rows[:2])


def test_loader_delivers_complex_rows_under_any_default_device():
    rows = torch.arange(6.0).to(torch.complex128)
    with torch.device("meta"):
        assert torch.equal(next(iter(FastLoader(rows, 6))), rows)


def test_columns_are_computed_on_the_cpu_under_any_default_device():
    rows = torch.arange(48).to(torch.uint8).view(2, 3, 2, 4)
    pixels, as_floats = rows[0].permute(1, 2, 0).numpy(), pixel_format(None, torch.float32, "CHW")
    expected, written = torch.empty(2, 3, 2, 4), [torch.empty(3, 2, 4) for _ in range(2)]
    expected.copy_(next(iter(FastLoader(converted(rows, mean=0.5, std=0.1), 2))))
    as_floats.write(pixels, written[0])
    with torch.device("meta"):
        assert torch.equal(next(iter(FastLoader(converted(rows, mean=0.5, std=0.1), 2))), expected)
        as_floats.write(pixels, written[1])
    assert torch.equal(*written)


def test_autograd_treats_sequential_batches_as_independent():
    weight = torch.ones(3, requires_grad=True)
    batches = list(FastLoader(TensorDataset(torch.ones(40, 3)), 8))
    loss = sum((batch[0] * weight).sum() for batch in batches)
    batches[1][0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()
    batches = list(FastLoader(TensorDataset(torch.ones(40, 3)), 8))
    loss = (batches[0][0] * weight).sum()
    batches[1][0].add_(1)
    loss.backward()
    batches[2][0].mul_(weight)
    (alone,) = FastLoader(torch.ones(4, 3), 8)
    alone.mul_(weight)
    assert weight.grad.tolist() == [8, 8, 8]


def test_no_batch_is_an_inference_tensor():
    rows = torch.arange(60_000.0).view(-1, 3)
    with torch.inference_mode():
        for num_threads in (0, 2):
            batches = list(FastLoader(rows, 10, shuffle=True, num_threads=num_threads))
            assert not any(batch.is_inference() for batch in batches)


def test_copies_of_a_loader_keep_changes_of_a_private_map(tmp_path):
    np.arange(20).tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", np.int64, "c")
    mapped[:] = -1
    for copy_loader in (copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))):
        (batch,) = copy_loader(FastLoader(mapped, 20))
        assert batch.tolist() == [-1] * 20


def test_copied_loader_keeps_its_position_in_the_epoch():
    loader = FastLoader(torch.arange(100), 10)
    batches = iter(loader)
    list(islice(batches, 3))
    copied = copy.copy(loader)
    list(islice(batches, 3))
    assert [each.state_dict()["delivered"] for each in (loader, copied)] == [6, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": "64"}, "batch_size='64': allowed is 1 or more, or None"),
        ({"batch_size": 1.5}, "batch_size=1.5: allowed is 1 or more, or None"),
        ({"batch_size": True}, "batch_size=True"),
        ({"shuffle": "no"}, "shuffle='no': allowed are True, False and Blocks"),
        ({"num_threads": "2"}, "num_threads='2': allowed is 0 or more"),
        ({"prefetch_factor": 0.5}, "prefetch_factor=0.5: allowed is 1 or more"),
        (
            {"sampler": DistributedSampler(range(9), 2, 0), "rank": 0, "world_size": 2},
            "world_size with a DistributedSampler",
        ),
    ],
)
def test_loader_rejects_invalid_values_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        FastLoader(torch.arange(9), **settings)


@pytest.mark.parametrize("indices", [[0.7, 1.9], [[0, 1], [2]]])
def test_loader_rejects_samplers_that_yield_no_integers(indices):
    with pytest.raises(ValueError, match="a sampler gives"):
        list(FastLoader(torch.arange(9), sampler=iter(indices)))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda rows: torch.quantize_per_tensor(rows, 0.1, 0, torch.qint8),
    ],
    ids=["coo", "csr", "quantized"],
)
def test_tensors_with_more_than_their_rows_are_refused(make):
    with pytest.raises(ValueError, match=r"^a source of torch.*: pass its to_dense\(\) or dequant"):
        FastLoader((make(torch.eye(3)), torch.arange(3)), 2)


def test_loader_rejects_tensors_that_require_grad():
    with pytest.raises(ValueError, match="pass its detach"):
        FastLoader((torch.ones(4, requires_grad=True),))


@pytest.mark.parametrize("seed", ["one", 0.5])
def test_loader_rejects_seeds_that_are_no_whole_numbers(seed):
    with pytest.raises(ValueError, match=f"seed={seed!r}: allowed are"):
        FastLoader(torch.arange(9), shuffle=True, seed=seed)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_loader_rejects_seeds_of_more_than_64_bits(seed):
    with pytest.raises(ValueError, match=f"seed={seed}: allowed are"):
        FastLoader(torch.arange(9), shuffle=True, seed=seed)
    for allowed in (2**64 - 1, -(2**63)):
        (batch,) = FastLoader(torch.arange(9), 9, shuffle=True, seed=allowed)
        generator = torch.Generator().manual_seed(allowed)
        assert torch.equal(batch, torch.randperm(9, generator=generator))
