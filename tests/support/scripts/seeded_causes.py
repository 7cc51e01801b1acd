"""Loops that are slow for one known reason each: seeded_causes.py <case> <folder>."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

CLONE_NEWNS = 0x20000


class Samples(Dataset):
    """Samples of a function of the index."""

    def __init__(self, function, count=300):
        self.function, self.count = function, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.function(index)


def compute(index, amount=20_000):
    return torch.full((4,), float(sum(i * i for i in range(amount + index % 2))))


def wait(seconds):
    def sample(index):
        time.sleep(seconds)
        return torch.zeros(4)

    return sample


def train(samples, batch_size=8, count=300, step=lambda batch: None, **settings):
    for batch in DataLoader(Samples(samples, count), batch_size, **settings):
        step(batch)


def multiply(batch):
    matrix = torch.rand(700, 700)
    for _ in range(4):
        matrix = matrix @ matrix / 700


# --- cores ---


def affinity(folder):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    train(compute, num_workers=2, count=600)


def affinity_alone(folder):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    train(compute)


def quota(folder):
    for path in ("cpu.max", "cpu.cfs_quota_us"):
        if (Path(folder) / path).exists():
            period = " 100000" if path == "cpu.max" else ""
            (Path(folder) / path).write_text(f"30000{period}")
    (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
    train(compute)


def threads(folder):
    torch.set_num_threads(4)
    train(compute, num_workers=2, count=600, step=multiply)


def worker_threads(folder):
    def multiply_sample(index):
        multiply(None)
        return torch.zeros(4)

    def init(worker):
        torch.set_num_threads(4)

    train(multiply_sample, 4, 200, num_workers=2, worker_init_fn=init)


# --- samples that wait ---


def sleep_alone(folder):
    train(wait(0.005))


def sleep_in_workers(folder):
    train(wait(0.005), num_workers=2, count=800)


def cold_files(folder):
    paths = [Path(folder) / f"{number}.bin" for number in range(200)]
    for path in paths:
        path.write_bytes(os.urandom(2**20))
        drop_pages(path)

    train(
        lambda index: torch.frombuffer(bytearray(paths[index].read_bytes()), dtype=torch.uint8),
        4,
        200,
    )


def cold_map(folder):
    path = Path(folder) / "mapped.bin"
    path.write_bytes(os.urandom(2**28))
    drop_pages(path)
    rows = np.memmap(path, np.uint8, "r", shape=(2**16, 2**12))
    order = random.Random(0).sample(range(2**16), 2**16)

    def read(index):
        picked = order[index * 20 : (index + 1) * 20]
        return torch.tensor([int(rows[row].sum()) for row in picked])

    train(read, 8, 1600)


def drop_pages(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- the interpreter ---


def lock_in_dataset(folder):
    pool = ThreadPoolExecutor(4)

    def sample(index):
        return sum(pool.map(compute, range(index, index + 4)))

    train(sample, count=150)


def lock_in_script(folder):
    ends = threading.Event()

    def compute_on():
        while not ends.is_set():
            compute(0)

    thread = threading.Thread(target=compute_on)
    thread.start()
    train(compute)
    ends.set()
    thread.join()


def copied_list(folder):
    items = [str(number) * 2 for number in range(2_000_000)]
    picks = random.Random(0)

    def sample(index):
        return torch.tensor([len(items[picks.randrange(len(items))]) for _ in range(2000)])

    train(sample, 8, 600, num_workers=2)


# --- batches ---


def tensors_in_workers(folder):
    train(lambda index: {str(key): torch.zeros(4) for key in range(60)}, 8, 800, num_workers=2)


def tensors_alone(folder):
    train(lambda index: [torch.zeros(4) for _ in range(80)], 8, 800)


def open_files(folder):
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = []
    train(lambda index: torch.zeros(4), 1, 104, step=kept.append, num_workers=1)


def no_more_files(folder):
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = []
    with contextlib.suppress(OSError, RuntimeError):
        train(lambda index: torch.zeros(4), 1, 1000, step=kept.append, num_workers=1)


def shared_memory(folder):
    if ctypes.CDLL(None).unshare(CLONE_NEWNS):
        sys.exit(77)
    mount = (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", "/dev/shm"],
    )
    for command in mount:
        if subprocess.run(command, check=False).returncode:
            sys.exit(77)
    kept = []

    def keep(batch):
        if len(kept) < 23:
            kept.append(batch)

    with contextlib.suppress(RuntimeError):
        train(lambda index: torch.zeros(2**18), 1, 200, step=keep, num_workers=1, prefetch_factor=1)


def tail_of_waits(folder):
    slow = set(random.Random(0).sample(range(600), 24))
    train(lambda index: wait(0.2 if index in slow else 0.004)(index), 1, 600, num_workers=2)


def tail_of_batches(folder):
    slow = set(random.Random(1).sample(range(1600), 24))
    train(lambda index: wait(0.3 if index in slow else 0.002)(index), 4, 1600, num_workers=3)


# --- the step ---


def printing(folder):
    reads, writes = os.pipe()

    def read_slowly():
        while os.read(reads, 4096):
            time.sleep(0.01)

    thread = threading.Thread(target=read_slowly)
    thread.start()
    with open(writes, "w", buffering=1) as terminal:
        train(
            lambda index: torch.zeros(4),
            2,
            300,
            step=lambda batch: print("loss", math.pi, "x" * 8000, file=terminal),
        )
    thread.join()


def waiting_step(folder):
    train(compute, step=lambda batch: time.sleep(0.02))


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](sys.argv[2])
