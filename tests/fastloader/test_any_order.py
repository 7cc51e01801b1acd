"""`in_order=False`: batches come as they get ready, and are the same batches."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from native_core import needs_core
from torch.utils.data import Dataset
from torchvision.transforms import v2

from fastloop import FastLoader

BY_THREADS = {"num_threads": 3, "thread_safe": True}
BY_COPIES = {"num_threads": 2}
BY_PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
WAYS = pytest.mark.parametrize(
    "way", [BY_THREADS, BY_COPIES, BY_PROCESSES], ids=["threads", "copies", "processes"]
)
GATE = multiprocessing.get_context("fork").Event()
"""Open once the loop has had a later batch; processes that are forked share it."""

LATE = 3


class Gated(Dataset):
    """Samples of which one waits until the loop has had a batch of later ones. It is none of the
    first batch, which the loop's thread makes itself if threads make the others."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index == LATE:
            assert GATE.wait(30)
        return index


class Drawn(Dataset):
    """Samples of (index, a random number), one of which fails."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return index, torch.rand(3)


def scale(batch: Any) -> Any:
    return [batch[0], batch[1] * torch.rand(())]


@WAYS
def test_batch_that_is_late_holds_up_no_other(way):
    GATE.clear()
    loader = FastLoader(Gated(), 3, in_order=False, **way)
    delivered = []
    for batch in loader:
        delivered.append(batch.tolist())
        if len(delivered) == 2:
            GATE.set()
    assert LATE not in delivered[0] + delivered[1]
    assert sorted(delivered) == [[*range(first, first + 3)] for first in range(0, 24, 3)]


@pytest.mark.heavy
@WAYS
@pytest.mark.parametrize("transform", [None, scale, v2.RandomHorizontalFlip()])
@pytest.mark.parametrize("size", [1, 7])
def test_batches_are_those_of_the_order_with_their_draws(way, transform, size):
    def batches(in_order: bool) -> list[Any]:
        settings = {"shuffle": True, "seed": 5, "transform": transform, "in_order": in_order}
        loader = FastLoader(Drawn(), size, **settings, **way)
        epochs = [list(loader) for _ in range(2)]
        return [[[leaf.tolist() for leaf in batch] for batch in epoch] for epoch in epochs]

    assert [*map(sorted, batches(False))] == [*map(sorted, batches(True))]


@WAYS
def test_failing_sample_takes_the_place_of_its_batch_alone(way):
    batches = iter(FastLoader(Drawn(broken=20), 5, in_order=False, **way))
    seen, errors = [], []
    while True:
        try:
            seen += next(batches)[0].tolist()
        except ValueError as error:
            errors.append(str(error))
        except StopIteration:
            break
    (error,) = errors
    assert "sample 20 is broken" in error
    assert sorted(seen) == [index for index in range(50) if index // 5 != 4]


@WAYS
def test_state_is_refused_in_a_line(way):
    loader = FastLoader(Drawn(), 5, in_order=False, **way)
    refusal = r"^state_dict with in_order=False: [^\n]*; allowed: in_order=True$"
    with pytest.raises(ValueError, match=refusal):
        loader.state_dict()
    loader.in_order = True
    assert loader.state_dict()["delivered"] == 0
    assert pickle.loads(pickle.dumps(loader)).in_order is True


def test_setting_may_be_assigned_between_epochs():
    loader = FastLoader(Gated(), 3, **BY_THREADS)
    GATE.set()
    assert torch.cat(list(loader)).tolist() == [*range(24)]
    GATE.clear()
    loader.in_order = False
    batches = iter(loader)
    assert LATE not in torch.cat([next(batches), next(batches)])
    GATE.set()
    assert len(list(batches)) == 6
    with pytest.raises(ValueError, match=r"^in_order=3: allowed are True and False"):
        loader.in_order = 3


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (torch.arange(9), {}),
        # Without the core, threads of Python deliver its batches as they get ready.
        pytest.param(torch.arange(9), {"num_threads": 4}, marks=needs_core),
        (Drawn(), {}),
    ],
)
def test_where_it_has_no_effect_a_warning_says_so(source, settings):
    with pytest.warns(UserWarning, match="in_order=False has no effect in FastLoader: batches"):
        FastLoader(source, 2, in_order=False, **settings)
