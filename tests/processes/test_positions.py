"""A trial that hangs, loses a worker or fills /dev/shm: what its error says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from commands import QUICK

from fastloop import FastLoader
from fastloop.core.loading_settings import LoadingSettings
from fastloop.core.plan import Plan
from fastloop.core.types import JobFailed
from fastloop.data.torch_epochs import torch_epochs
from fastloop.data.worker_errors import FULL_SHM
from fastloop.options.launcher.single import SingleLauncher
from fastloop.options.order.sequential import SequentialOrder
from fastloop.processes.child_process import Call, start_child
from fastloop.processes.positions import locate_processes

FORKSERVER = SingleLauncher(isolation="forkserver")
SEQUENTIAL = SequentialOrder()
ATTEMPTS = 200
"""Far more than a busy machine needs; a process has half a second to answer each."""


class StuckSamples:
    """Two samples, the second of which hangs after it has written a file."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index:
            self.file.touch()
            time.sleep(10_000)
        return index


class StuckOrder:
    """An order that hangs after its first two samples, so that workers have nothing to do."""

    complete = True

    def __init__(self, file):
        self.file = file

    def length(self, num_samples):
        return num_samples

    def pieces(self, num_samples, seed, epoch):
        yield torch.arange(2)
        self.file.touch()
        time.sleep(10_000)
        yield torch.arange(2, num_samples)


class DyingSamples:
    """Two samples, the second of which ends its process."""

    def __init__(self, sign):
        self.sign = sign

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index:
            os.kill(os.getpid(), self.sign)
        return index


def read_all(samples, workers, order=SEQUENTIAL):
    loading = LoadingSettings(
        batch_size=1,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    with torch_epochs(samples, Plan(order=order, seed=0, loading=loading)) as epochs:
        return len(list(epochs(0)))


def read_by_threads(samples):
    return len(list(FastLoader(samples, batch_size=1, num_threads=2)))


def locate_when(file, pattern, function, *arguments):
    """Words and stacks of a hanging call, once the sample hangs and all processes answer."""
    with start_child("forkserver", Call(function=function, args=arguments)) as child:
        while not file.exists():
            time.sleep(0.01)
        for _ in range(ATTEMPTS):
            words, stacks = locate_processes(child)
            if re.search(pattern, words):
                break
    return words, stacks


def test_stuck_worker_and_the_loop_that_waits_for_it_are_named(tmp_path):
    file = tmp_path / "stuck"
    pattern = (
        r"^waits in next\(\) of a DataLoader \(dataloader.py:\d+\), "
        r"worker 0 \(pid \d+\) waits for work, "
        r"worker 1 \(pid \d+\) is in __getitem__ \(test_positions.py:\d+\)$"
    )
    words, stacks = locate_when(file, pattern, read_all, StuckSamples(file), 2)
    assert re.search(pattern, words)
    assert re.search(
        r"worker 1 \(pid \d+\), is in .*:\n(.*\n)*?.*, line \d+ in __getitem__", stacks
    )
    assert stacks.count("most recent call first") >= 3


def test_stuck_sample_without_workers_is_named(tmp_path):
    file = tmp_path / "stuck"
    pattern = r"^in __getitem__ \(test_positions.py:\d+\)$"
    words, _ = locate_when(file, pattern, read_all, StuckSamples(file), 0)
    assert re.search(pattern, words)


def test_stuck_thread_is_named(tmp_path):
    file = tmp_path / "stuck"
    pattern = r"thread \d+ is in __getitem__ \(test_positions.py:\d+\)"
    words, stacks = locate_when(file, pattern, read_by_threads, StuckSamples(file))
    assert re.search(pattern, words)
    assert re.search(r"^in \w+ \(\w+.py:\d+\), thread ", words), "the loop's own place comes first"
    assert re.search(r"line \d+ in __getitem__", stacks)


def test_order_that_starves_the_workers_is_named(tmp_path):
    file = tmp_path / "stuck"
    pattern = (
        r"^in pieces \(test_positions.py:\d+\), worker 0 \(pid \d+\) waits for work, "
        r"worker 1 \(pid \d+\) waits for work$"
    )
    words, stacks = locate_when(file, pattern, read_all, [0, 1, 2, 3], 2, StuckOrder(file))
    assert re.search(pattern, words)
    assert "dataloader.py" in stacks


@pytest.mark.parametrize(
    ("sign", "reason"),
    [
        (signal.SIGKILL, r"ended before its batch, killed by SIGKILL$|out of memory: the kernel"),
        (signal.SIGBUS, r"^out of memory: /dev/shm \(\d+ MiB in all\) has no room"),
    ],
)
def test_lost_worker_is_one_clear_line(sign, reason):
    with pytest.raises(JobFailed, match=reason):
        FORKSERVER.call(read_all, DyingSamples(sign), 1)


@pytest.mark.parametrize(
    "message",
    [
        "unable to allocate shared memory(shm) for file </t>: No space left on device (28)",
        "unable to write to file </torch_7_1_0>: No space left on device (28)",
        "unable to mmap 64 bytes from file </torch_7_1_0>: Cannot allocate memory (12)",
    ],
)
def test_messages_of_a_full_shared_memory_are_known(message):
    assert FULL_SHM.search(f"Caught RuntimeError in DataLoader worker process 0.\n{message}")
    assert not FULL_SHM.search("Caught OSError in DataLoader worker process 0.\nNo space left")


@pytest.mark.heavy
def test_shared_memory_that_is_full_is_one_clear_line(tmp_path):
    mounted = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    inside = ["unshare", "--mount", "sh", "-c", mounted, "sh"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting a small /dev/shm needs root")
    large = ("dataset.count=1024", "dataset.shape=[64,64]", "batch_size=512")
    process = subprocess.run(
        [
            *inside,
            sys.executable,
            "-m",
            "fastloop.run",
            *QUICK,
            "loader=raw",
            "num_workers=1",
            *large,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert "/dev/shm (1 MiB in all) has no room for the batches" in process.stderr
    assert "Traceback" not in process.stderr
