"""Datasets for processes that read them, in a light module that spawned ones import."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


class Pids(Dataset):
    """(index, process that read it, number of the worker) samples."""

    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        info = get_worker_info()
        return index, os.getpid(), -1 if info is None else info.id


class Worker(Dataset):
    """What get_worker_info says, and whether its dataset is this one."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return info.id, info.num_workers, info.seed


class Rows(Dataset):
    """Tensors of a size that the index gives, or all of one."""

    def __init__(self, count: int, width: int = 256, varies: bool = False) -> None:
        self.count, self.width, self.varies = count, width, varies

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        width = self.width * (1 + index) if self.varies else self.width
        return torch.full((width,), index, dtype=torch.int32), np.full(3, index)


class LocalError(Exception):
    """An error that two arguments make."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Failing(Pids):
    """Numbers; the sample `broken` raises `error`."""

    def __init__(self, broken: int, error: Exception, count: int = 40) -> None:
        super().__init__(count)
        self.broken, self.error = broken, error

    def __getitem__(self, index: int):
        if index == self.broken:
            raise self.error
        return index


class Ending(Pids):
    """Numbers; the process that reads the sample 17 ends in some way, and others wait for ever."""

    def __init__(self, way: str, count: int = 40) -> None:
        super().__init__(count)
        self.way = way

    def __getitem__(self, index: int):
        if index == 17:
            if self.way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)
        if index > 17:
            threading.Event().wait()
        return index


def refuse_files(number: int) -> None:
    """Let this process make no file of more than a page, as where there is no room."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def fail_to_begin(number: int) -> None:
    raise LookupError(f"worker {number}")
