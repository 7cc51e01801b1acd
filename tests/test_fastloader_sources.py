"""What may be a source, however its memory lies, and what is refused with its reason."""

from __future__ import annotations

import copy
import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, TensorDataset

from fastloop import FastLoader

NUMBERS = np.arange(12.0)
SHAPES = {
    "a column of an array by columns": np.asfortranarray(NUMBERS.reshape(6, 2))[:, :1],
    "a row that was a column": torch.arange(6.0).reshape(1, 6).t(),
    "one row of an array by columns": np.asfortranarray(NUMBERS.reshape(3, 4))[:1],
    "backwards": NUMBERS[::-1],
    "no rows": np.zeros((0, 2)),
    "none by a mask": NUMBERS.reshape(6, 2)[np.zeros(6, bool)],
    "conjugated": torch.arange(4.0).mul(1j).conj(),
    "negated": torch.arange(4.0).mul(1j).conj().imag,
}


@pytest.mark.parametrize("way", ["as it lies", "copied", "gathered"])
@pytest.mark.parametrize("name", SHAPES)
def test_rows_are_delivered_however_they_lie(name, way):
    source = SHAPES[name]
    ways = {"copied": {"copy": True}, "gathered": {"sampler": range(len(source))}}
    wanted = torch.as_tensor(source.copy()) if isinstance(source, np.ndarray) else source
    found = list(FastLoader(source, 4, **ways.get(way, {})))
    assert torch.equal(torch.cat(found) if found else wanted[:0], wanted)


def test_complex_numbers_are_known_whatever_the_default_device():
    rows = torch.arange(6.0).to(torch.complex128)
    with torch.device("meta"):
        assert torch.equal(next(iter(FastLoader(rows, 6))), rows)


def test_batches_in_order_are_tensors_of_their_own_to_autograd():
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


def test_no_batch_is_an_inference_tensor_whoever_made_it():
    rows = torch.arange(60_000.0).view(-1, 3)
    with torch.inference_mode():
        for num_threads in (0, 2):
            batches = list(FastLoader(rows, 10, shuffle=True, num_threads=num_threads))
            assert not any(batch.is_inference() for batch in batches)


def test_what_was_written_to_a_map_of_ones_own_travels(tmp_path):
    np.arange(20).tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", np.int64, "c")
    mapped[:] = -1
    for travelled in (copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))):
        (batch,) = travelled(FastLoader(mapped, 20))
        assert batch.tolist() == [-1] * 20


def test_a_copy_in_the_middle_of_an_epoch_stays_there():
    loader = FastLoader(torch.arange(100), 10)
    batches = iter(loader)
    list(islice(batches, 3))
    copied = copy.copy(loader)
    list(islice(batches, 3))
    assert [one.state_dict()["delivered"] for one in (loader, copied)] == [6, 3]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": "64"}, "batch_size='64': allowed is 1 or more, or None"),
        ({"batch_size": 1.5}, "batch_size=1.5: allowed is 1 or more, or None"),
        ({"batch_size": True}, "batch_size=True"),
        ({"shuffle": "no"}, "shuffle='no': allowed are True, False and Blocks"),
        ({"num_threads": "2"}, "num_threads='2': allowed is 0 or more"),
        ({"prefetch_factor": 0.5}, "prefetch_factor=0.5: allowed is 1 or more"),
        (
            {"sampler": DistributedSampler(range(9), 2, 0), "world_size": 2},
            "world_size with a DistributedSampler",
        ),
    ],
)
def test_settings_that_can_not_be_are_named(settings, said):
    with pytest.raises(ValueError, match=said):
        FastLoader(torch.arange(9), **settings)


@pytest.mark.parametrize("indices", [[0.7, 1.9], [[0, 1], [2]]])
def test_a_sampler_gives_integers(indices):
    with pytest.raises(ValueError, match="a sampler gives"):
        list(FastLoader(torch.arange(9), sampler=(one for one in indices)))


def test_what_requires_grad_is_refused():
    with pytest.raises(ValueError, match="pass its detach"):
        FastLoader(TensorDataset(torch.ones(4, requires_grad=True)))


def test_an_order_that_can_not_be_drawn_fails_in_its_own_epoch():
    loader = FastLoader(torch.arange(300_000), 300, shuffle=True, seed=2**64 - 1, num_threads=1)
    assert len(torch.cat(list(loader)).unique()) == 300_000
    with pytest.raises(ValueError, match="Overflow"):
        iter(loader)
