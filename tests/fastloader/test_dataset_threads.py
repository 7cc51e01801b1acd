"""Datasets that are not thread-safe are read right; forks and interrupts end an epoch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fork_server
import numpy as np
import os_threads
import pytest
import torch
from commands import run_script
from torch.utils.data import Dataset, Subset

from fastloop import FastLoader


class FileSamples(Dataset):
    """Numbers of a file that is read through one open handle: seek, then read."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, path.stat().st_size // 8
        self.file = path.open("rb")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.file.seek(8 * index)
        return int.from_bytes(self.file.read(8), sys.byteorder)

    def __del__(self) -> None:
        self.file.close()

    def __getstate__(self) -> dict:
        return {"path": self.path, "count": self.count}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.file = self.path.open("rb")


class Unpicklable(FileSamples):
    def __getstate__(self) -> dict:
        return dict(self.__dict__)


class Overlaps(Dataset):
    """Samples that notice when two threads read them at once."""

    def __init__(self) -> None:
        self.is_read, self.overlaps, self.threads = False, 0, set()

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        self.overlaps += self.is_read
        self.is_read = True
        self.threads.add(threading.get_ident())
        threading.Event().wait(1e-4)  # lets another thread run
        self.is_read = False
        return index


@pytest.fixture
def numbers(tmp_path) -> Path:
    np.arange(5000).tofile(tmp_path / "numbers")
    return tmp_path / "numbers"


@pytest.mark.parametrize("num_threads", [None, 0, 1, 2, 4])
def test_dataset_with_an_open_file_gives_the_right_samples(numbers, num_threads):
    loader = FastLoader(FileSamples(numbers), 50, shuffle=True, num_threads=num_threads)
    assert loader.num_threads == (1 if num_threads is None else num_threads)
    for _ in range(2):
        assert sorted(sample for batch in loader for sample in batch.tolist()) == [*range(5000)]


def test_dataset_is_read_by_one_thread_unless_it_is_thread_safe():
    dataset = Overlaps()
    first, second = (FastLoader(Subset(dataset, range(200)), 4) for _ in range(2))
    for batch, other in zip(first, second, strict=True):
        assert batch.tolist() == other.tolist()
    assert dataset.overlaps == 0
    assert len(dataset.threads) >= 2  # the loop's, for each first batch, and the loader's
    shared = FastLoader(dataset, 4, num_threads=3, thread_safe=True)
    assert len(list(shared)) == 50
    assert dataset.overlaps > 0


class Held(Dataset):
    """A Dataset with samples that can be read once `gate` is set."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.asked.set()
        self.gate.wait()
        return index


@pytest.mark.parametrize("num_threads", [0, 2])
def test_epoch_is_closed_after_the_next_of_another_thread(num_threads):
    dataset = Held()
    batches = iter(FastLoader(dataset, 4, num_threads=num_threads, thread_safe=True))
    with ThreadPoolExecutor(1) as other:
        batch = other.submit(next, batches)
        assert dataset.asked.wait(60)
        threading.Timer(0.2, dataset.gate.set).start()
        batches.close()
        assert batch.result().tolist() == [0, 1, 2, 3]
    assert list(batches) == []


def test_each_of_several_threads_has_a_copy_of_the_dataset():
    dataset = Overlaps()
    loader = FastLoader(dataset, 4, num_threads=3)
    list(loader)
    assert dataset.threads == {threading.get_ident()}  # the first batch
    assert dataset.overlaps == 0


def test_copies_share_read_only_maps_and_plain_functions(numbers):
    mapped = np.memmap(numbers, np.int64, "r")
    loader = FastLoader(MappedSamples(mapped, lambda row: 2 * int(row)), 50, num_threads=2)
    assert sum(int(batch.sum()) for batch in loader) == 2 * sum(range(5000))


class MappedSamples(Dataset):
    def __init__(self, mapped: np.memmap, convert) -> None:
        self.mapped, self.convert = mapped, convert

    def __len__(self) -> int:
        return len(self.mapped)

    def __getitem__(self, index: int) -> int:
        assert isinstance(
            self.mapped, np.memmap
        )  # numpy pickles a map as an array of all its bytes
        return self.convert(self.mapped[index])


def test_dataset_that_cannot_be_copied_is_refused(numbers):
    loader = FastLoader(Unpicklable(numbers), 50, num_threads=2)
    with pytest.raises(
        ValueError, match="num_threads gives each thread a pickled copy of Unpicklable"
    ):
        iter(loader)
    assert len(list(FastLoader(Unpicklable(numbers), 50, num_threads=1))) == 100


BLOCKED = """
import sys, threading
from torch.utils.data import Dataset
from fastloop import FastLoader

class Blocked(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 12:
            open("blocked", "w").close()
            threading.Event().wait()
        return index

for batch in FastLoader(Blocked(), 4, num_threads=int(sys.argv[1]), thread_safe=True):
    pass
"""


@pytest.mark.parametrize("num_threads", ["0", pytest.param("2", marks=pytest.mark.heavy)])
def test_interrupt_ends_an_epoch_whose_dataset_blocks_for_ever(tmp_path, num_threads):
    program = tmp_path / "blocked.py"
    program.write_text(BLOCKED)
    command = fork_server.start(str(program), (num_threads,), tmp_path, dict(os.environ))
    command.wait_until((tmp_path / "blocked").exists)
    time.sleep(1)  # until the loop waits as well
    command.process.send_signal(signal.SIGINT)
    process = command.wait()
    assert "KeyboardInterrupt" in process.stderr
    assert process.returncode == -signal.SIGINT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_that_goes_on_iterating_gets_an_error(tmp_path):
    program = tmp_path / "forks.py"
    program.write_text(
        "import os, torch\n"
        "from fastloop import FastLoader\n"
        "class Numbers(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 5000\n"
        "    def __getitem__(self, index): return index\n"
        "def check(source, taken):\n"
        "    loader = FastLoader(source, 3, shuffle=True, num_threads=2, thread_safe=True)\n"
        "    running = iter(loader); [next(running) for _ in range(taken)]\n"
        "    if os.fork() == 0:\n"
        "        try:\n"
        "            list(running)\n"
        "        except RuntimeError as error:\n"
        "            assert 'is its fork: iterate over the loader again' in str(error)\n"
        "            assert len(list(loader)) == len(loader)\n"
        "            os._exit(7)\n"
        "        os._exit(1)\n"
        "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
        "    assert len(list(running)) == len(loader) - taken\n"
        "for source in torch.arange(5000), Numbers(), torch.arange(9):\n"
        "    for taken in 0, 2:\n"
        "        check(source, taken)\n"
    )
    process = run_script(program, cwd=tmp_path)
    assert process.returncode == 0, process.stderr


def test_abandoned_epoch_of_a_dataset_ends_its_threads(numbers):
    before = os_threads.count_threads()
    for _ in range(3):
        for taken, _ in enumerate(FastLoader(FileSamples(numbers), 5, num_threads=2)):
            if taken == 4:
                break
    assert os_threads.falls_to(before)


class Stored(Dataset):
    """Rows of a tensor."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def test_tensors_that_torch_cannot_pickle_are_named_with_what_pickles_them():
    rows = torch.arange(20).to(torch.uint16)
    message = "^num_threads gives each thread a pickled copy of Stored, which fails .*num_threads=1"
    with pytest.raises(ValueError, match=message):
        list(FastLoader(Stored(rows), 2, num_threads=3))
    assert len(list(FastLoader(Stored(rows), 2, num_threads=1))) == 10


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_threads_that_share_an_epoch_get_each_sample_once(shuffle, num_threads):
    loader = FastLoader(Stored(torch.arange(4000)), 2, shuffle=shuffle, num_threads=num_threads)
    batches, taken, errors = iter(loader), [], []
    next_one = threading.Barrier(4)

    def take() -> None:
        next_one.wait()
        try:
            taken.extend(batch.tolist() for batch in batches)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(index for batch in taken for index in batch) == [*range(4000)]


DAEMON = """
import threading, time
from torch.utils.data import Dataset
from fastloop import FastLoader

class Slow(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.001)
        return index

def iterate():
    for _ in FastLoader(Slow(), 10, num_workers=2):
        begun.set()

begun = threading.Event()
threading.Thread(target=iterate, daemon=True).start()
begun.wait()
"""


@pytest.mark.heavy
def test_a_program_ends_quietly_beside_a_daemon_thread_that_waits_for_processes():
    command = [sys.executable, "-c", DAEMON]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
