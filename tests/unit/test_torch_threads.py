"""Orders are drawn on one torch thread, and the thread count of all other threads is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from commands import run_script

from fastloop.core.torch_threads import iterate_single_threaded, one_torch_thread
from fastloop.fastloader import FastLoader, converted

COUNT = 100_000
"""More elements than torch processes on one thread."""
STATEMENTS = {
    "torch itself": f"torch.randperm({COUNT})",
    "FastLoader": f"list(FastLoader(np.zeros({COUNT}), 1000, shuffle=True, num_threads=0))",
    "an order": f"epoch_indices(RandomOrder(), {COUNT}, 0, 0)",
    "a RandomSampler": (
        f"list(FastLoader(np.zeros({COUNT}), 1000, num_threads=0, "
        f"sampler=RandomSampler(range({COUNT}))))"
    ),
}


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def count_in_a_new_thread() -> int:
    """Number of torch's threads in a new Python thread."""
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return counts[0]


def run_program(program: str, folder: Path) -> list[int]:
    """Integers that the program prints in a new process, which begins with a single thread."""
    (folder / "program.py").write_text(program)
    process = run_script(folder / "program.py", cwd=folder)
    assert process.returncode == 0, process.stderr
    return [int(word) for word in process.stdout.split()]


@pytest.mark.heavy
@pytest.mark.parametrize("name", STATEMENTS)
def test_drawing_an_order_starts_no_openmp_thread(name, tmp_path):
    program = (
        "import numpy as np, psutil, torch\n"
        "from torch.utils.data import RandomSampler\n"
        "from fastloop import FastLoader\n"
        "from fastloop.options.order.random import RandomOrder\n"
        "from fastloop.core.index_batches import epoch_indices\n"
        "torch.set_num_threads(3)\n"
        "before = psutil.Process().num_threads()\n"
        f"{STATEMENTS[name]}\n"
        "print(psutil.Process().num_threads() - before)\n"
    )
    assert run_program(program, tmp_path) == [2 if name == "torch itself" else 0]


def test_one_torch_thread_restores_the_count_after_an_error():
    def fails() -> None:
        assert torch.get_num_threads() == 1
        raise KeyError

    with pytest.raises(KeyError), one_torch_thread():
        fails()
    assert torch.get_num_threads() == 3
    assert count_in_a_new_thread() == 3


def test_iterate_single_threaded_restores_the_count_between_items():
    counts = iterate_single_threaded(torch.get_num_threads() for _ in range(3))
    assert [(count, torch.get_num_threads()) for count in counts] == [(1, 3)] * 3


def test_fastloader_threads_leave_the_count_of_others_unchanged():
    def double(batch: torch.Tensor) -> torch.Tensor:
        assert torch.get_num_threads() == 1
        return batch * 2

    for _ in FastLoader(torch.arange(4000), 100, transform=double, num_threads=2):
        pass
    assert torch.get_num_threads() == 3
    assert count_in_a_new_thread() == 3


def test_new_thread_during_an_epoch_has_the_full_count():
    counts: list[int] = []

    def draw(indices: torch.Tensor):
        assert torch.get_num_threads() == 1
        counts.append(count_in_a_new_thread())
        yield from indices

    list(iterate_single_threaded(draw(torch.arange(3))))
    images = converted(torch.zeros(20_000, 784, dtype=torch.uint8))
    for number, _ in enumerate(FastLoader(images, 256, shuffle=True, num_threads=1)):
        if number % 10 == 0:
            counts.append(count_in_a_new_thread())
    assert set(counts) == {3}


def test_fastloader_without_threads_uses_the_full_count():
    counts: list[int] = []

    def record_count(batch: torch.Tensor) -> torch.Tensor:
        counts.append(torch.get_num_threads())
        return batch

    for _ in FastLoader(torch.arange(400), 100, transform=record_count, num_threads=0):
        pass
    assert counts == [3] * 4


def test_fastloader_consumer_converts_on_one_torch_thread(tmp_path):
    program = (
        "import numpy as np, psutil, torch\n"
        "from fastloop import FastLoader, converted\n"
        "torch.set_num_threads(3)\n"
        "images = np.zeros((20_000, 784), np.uint8)\n"
        "before = psutil.Process().num_threads()\n"
        "loader = FastLoader(converted(images), 256, shuffle=True, num_threads=1)\n"
        "counts = [psutil.Process().num_threads() - before for _ in loader]\n"
        "print(max(counts), torch.get_num_threads())\n"
    )
    most, after = run_program(program, tmp_path)
    assert most <= 2  # the loader's own thread and, briefly, the one that restores torch's count
    assert after == 3
