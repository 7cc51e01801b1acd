"""Threads of FastLoader have the modes of torch that the loop's own thread has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, default_collate

from fastloop import FastLoader, converted

SETTINGS = [{"num_threads": n} for n in (0, 1, 3)] + [{}]
LAYER = torch.nn.Linear(2, 2)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


class Made(Dataset):
    """Samples that `make` makes, and the threads that have read them."""

    def __init__(self, make: Callable[[], Any], count: int = 24) -> None:
        self.make, self.count = make, count
        self.readers: set[int] = set()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.readers.add(threading.get_ident())
        return self.make()


def kinds_here(dataset: Made) -> list:
    """Of the batches of a DataLoader without workers, which itself fails with another device."""
    sizes = range(0, len(dataset), 3)
    return kinds(default_collate([dataset[i] for i in range(k, k + 3)]) for k in sizes)


def kinds(loader: Iterable[torch.Tensor]) -> list:
    return [(x.device.type, x.dtype, x.requires_grad, x.is_inference()) for x in loader]


MODES = {
    "nothing": nullcontext,
    "device": lambda: torch.device("meta"),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
MAKES = {
    "zeros": lambda: torch.zeros(3),
    "rand": lambda: torch.rand(3) + torch.randn(3),
    "layer": lambda: LAYER(torch.ones(2, device="cpu")),
    "inner device": lambda: _zeros_on("cpu") + torch.rand(2, device="cpu"),
}


def _zeros_on(device: str) -> torch.Tensor:
    with torch.device(device):
        return torch.zeros(2) + torch.rand(2)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("mode", MODES)
def test_threads_have_the_modes_of_the_loop(mode, make, settings):
    """The first batch is made by the loop, and the others are by threads."""
    dataset = Made(MAKES[make])
    with MODES[mode]():
        expected = kinds_here(dataset)
        assert kinds(FastLoader(dataset, 3, thread_safe=True, **settings)) == expected
    assert len(dataset.readers) > 1 or not settings.get("num_threads")


@pytest.mark.parametrize("mode", ["nothing", "no_grad", "autocast"])
def test_processes_have_the_modes_of_the_loop(mode):
    dataset = Made(MAKES["layer"], 12)
    with MODES[mode]():
        ours, theirs = FastLoader(dataset, 3, num_workers=1), DataLoader(dataset, 3)
        assert [each[1:] for each in kinds(ours)] == [each[1:] for each in kinds(theirs)]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_modes_within_modes_reach_the_threads(num_threads):
    dataset = Made(lambda: LAYER(torch.ones(2)) + torch.zeros(2))
    outer = torch.inference_mode(), torch.enable_grad(), torch.autocast("cpu", torch.float16)
    with ExitStack() as stack:
        for mode in outer:
            stack.enter_context(mode)
        expected = kinds_here(dataset)
        assert kinds(FastLoader(dataset, 3, num_threads=num_threads)) == expected
        with torch.autocast("cpu", enabled=False):
            expected = kinds_here(dataset)
            assert kinds(FastLoader(dataset, 3, num_threads=num_threads)) == expected


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_default_device_and_dtype_that_are_set_reach_the_threads(num_threads):
    dataset, before = Made(lambda: torch.zeros(3)), torch.get_default_dtype()
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        expected = kinds_here(dataset)
        assert expected[0][:2] == ("meta", torch.float64)
        assert kinds(FastLoader(dataset, 3, num_threads=num_threads)) == expected
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)
    assert kinds(FastLoader(dataset, 3, num_threads=num_threads))[-1][0] == "cpu"


def test_threads_leave_the_default_device_of_the_process_alone():
    """torch keeps it in a variable of all threads, too, for compiled functions."""
    dataset = Made(lambda: torch.zeros(3), 60)
    with torch.device("meta"):
        running = iter(FastLoader(dataset, 3, num_threads=3, thread_safe=True))
        next(running)
    assert {batch.device.type for batch in running} == {"meta"}
    assert _device.CURRENT_DEVICE is None


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("kind", ["rows", "converted", "transform"])
def test_rows_are_read_on_the_cpu_under_any_default_device(kind, num_threads):
    rows = torch.arange(96).to(torch.uint8).view(8, 3, 2, 2)
    source = rows if kind == "rows" else converted(rows, mean=0.5, std=0.1)
    settings: dict[str, Any] = {"transform": lambda batch: batch} if kind == "transform" else {}
    expected = torch.cat(list(FastLoader(source, 2)))
    with torch.device("meta"):
        batches = list(FastLoader(source, 2, num_threads=num_threads, **settings))
    assert torch.equal(torch.cat(batches), expected)


class Count(TorchFunctionMode):
    """Counts the calls of torch.zeros, and who makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.zeros:
            self.threads.append(threading.get_ident())
        return func(*args, **kwargs or {})


class CountBelow(TorchDispatchMode):
    """The same below torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.zeros.default:
            self.threads.append(threading.get_ident())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("make_mode", [Count, CountBelow])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_loop_makes_all_batches_under_a_mode_of_the_program(make_mode, settings):
    """Such a mode need not be written for several threads, and sees what it would see without."""
    dataset = Made(lambda: torch.zeros(3))
    with make_mode() as mode:
        assert len(list(FastLoader(dataset, 3, thread_safe=True, **settings))) == 8
    assert mode.threads == [threading.get_ident()] * 24
    assert dataset.readers == {threading.get_ident()}


def test_an_epoch_under_a_mode_decides_nothing_for_later_ones():
    """Samples that draw from generators that threads share are found once threads read."""
    loader = FastLoader(Made(np.random.rand), 3, num_threads=2, thread_safe=True)
    with Count():
        list(loader)
    with pytest.warns(UserWarning, match="global random generators of numpy"):
        list(loader)


def test_a_sample_that_iterates_over_a_loader_with_threads_gets_the_modes():
    """The modes that redirect the draws of the outer thread stay there."""
    inner = Made(lambda: torch.rand(2), 6)
    outer = Made(lambda: torch.cat(list(FastLoader(inner, 2, seed=1, num_threads=1))), 9)
    with torch.device("meta"):
        batches = list(FastLoader(outer, 3, num_threads=1))
    assert {batch.device.type for batch in batches} == {"meta"}
    assert len(inner.readers) > 2
    few, many = (list(FastLoader(outer, 3, num_threads=n, seed=0)) for n in (1, 0))
    assert all(map(torch.equal, few, many))


VARIABLE: ContextVar[int] = ContextVar("VARIABLE", default=0)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_threads_have_the_loops_context_variables(num_threads):
    token = VARIABLE.set(7)
    try:
        batches = list(FastLoader(Made(VARIABLE.get), 3, num_threads=num_threads, thread_safe=True))
    finally:
        VARIABLE.reset(token)
    assert torch.cat(batches).tolist() == [7] * 24


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="kept elsewhere")
@pytest.mark.parametrize("num_threads", [0, 2])
def test_threads_raise_the_errors_of_numpy_that_the_loop_raises(num_threads):
    dataset = Made(lambda: np.ones(1) / np.zeros(1))
    with np.errstate(divide="raise"):
        running = iter(FastLoader(dataset, 3, num_threads=num_threads, thread_safe=True))
        for _ in range(8):
            with pytest.raises(FloatingPointError):
                next(running)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("num_threads", [0, 2])
def test_threads_use_the_loops_stream(num_threads):
    dataset = Made(lambda: torch.cuda.current_stream().cuda_stream)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        batches = list(FastLoader(dataset, 3, num_threads=num_threads, thread_safe=True))
    assert set(torch.cat(batches).tolist()) == {stream.cuda_stream}
