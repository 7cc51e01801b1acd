"""Orders are drawn on one of torch's threads, and nobody else's number of them changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from fastloop.fastloader import FastLoader, converted
from fastloop.torch_threads import made_on_one, one_torch_thread

COUNT = 100_000
"""More than torch leaves to one thread."""
WAKES = {
    "torch itself": f"torch.randperm({COUNT})",
    "FastLoader": f"list(FastLoader(np.zeros({COUNT}), 1000, shuffle=True, num_threads=0))",
    "an order": f"epoch_indices(Random(), {COUNT}, 0, 0)",
    "a RandomSampler": (
        f"list(FastLoader(np.zeros({COUNT}), 1000, num_threads=0, "
        f"sampler=RandomSampler(range({COUNT}))))"
    ),
}


@pytest.fixture(autouse=True)
def several():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_a_new_thread() -> int:
    """torch's number of threads there."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def numbers_of(program: str) -> list[int]:
    """What it prints, in a process of its own that OpenMP may have three threads in."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "3"},
    )
    return [int(one) for one in done.stdout.split()]


@pytest.mark.parametrize("what", WAKES)
def test_no_thread_of_openmp_is_woken_to_draw_an_order(what):
    program = (
        "import numpy as np, psutil, torch\n"
        "from torch.utils.data import RandomSampler\n"
        "from fastloop import FastLoader\n"
        "from fastloop.orders.random import Random\n"
        "from fastloop.plans import epoch_indices\n"
        "torch.set_num_threads(3)\n"
        "before = psutil.Process().num_threads()\n"
        f"{WAKES[what]}\n"
        "print(psutil.Process().num_threads() - before)\n"
    )
    assert numbers_of(program) == [2 if what == "torch itself" else 0]


def test_the_number_is_what_it_was_whatever_happens_inside():
    def fails() -> None:
        assert torch.get_num_threads() == 1
        raise KeyError

    with pytest.raises(KeyError), one_torch_thread():
        fails()
    assert torch.get_num_threads() == 3
    assert in_a_new_thread() == 3


def test_every_piece_is_made_on_one_and_seen_on_as_many_as_before():
    made = made_on_one(torch.get_num_threads() for _ in range(3))
    assert [(one, torch.get_num_threads()) for one in made] == [(1, 3)] * 3


def test_threads_that_make_batches_leave_others_theirs():
    def doubled(batch: torch.Tensor) -> torch.Tensor:
        assert torch.get_num_threads() == 1
        return batch * 2

    for _ in FastLoader(torch.arange(4000), 100, transform=doubled, num_threads=2):
        pass
    assert torch.get_num_threads() == 3
    assert in_a_new_thread() == 3


def test_a_thread_that_meets_torch_in_the_epoch_has_all_of_its_threads():
    seen: list[int] = []

    def drawn(indices: torch.Tensor):
        assert torch.get_num_threads() == 1
        seen.append(in_a_new_thread())
        yield from indices

    list(made_on_one(drawn(torch.arange(3))))
    images = converted(torch.zeros(20_000, 784, dtype=torch.uint8))
    for number, _ in enumerate(FastLoader(images, 256, shuffle=True, num_threads=1)):
        if number % 10 == 0:
            seen.append(in_a_new_thread())
    assert set(seen) == {3}


def test_who_makes_everything_has_all_of_torchs_threads():
    seen: list[int] = []

    def looked_at(batch: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return batch

    for _ in FastLoader(torch.arange(400), 100, transform=looked_at, num_threads=0):
        pass
    assert seen == [3] * 4


def test_a_consumer_that_helps_converts_on_one_thread_as_the_others_do():
    program = (
        "import numpy as np, psutil, torch\n"
        "from fastloop import FastLoader, converted\n"
        "torch.set_num_threads(3)\n"
        "images = np.zeros((20_000, 784), np.uint8)\n"
        "before = psutil.Process().num_threads()\n"
        "loader = FastLoader(converted(images), 256, shuffle=True, num_threads=1)\n"
        "found = [psutil.Process().num_threads() - before for _ in loader]\n"
        "print(max(found), torch.get_num_threads())\n"
    )
    most, after = numbers_of(program)
    assert most <= 2  # the loader's own, and for a moment the one that gives torch its number back
    assert after == 3
