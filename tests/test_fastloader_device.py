"""Batches that are delivered on a device."""

from __future__ import annotations

import numpy as np
import os_threads
import pytest
import torch
from torch.utils import _pytree as pytree

from fastloop import FastLoader, converted

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def numbered(count: int, width: int = 5) -> dict:
    labels = torch.arange(count)
    return {"x": labels.view(-1, 1).expand(count, width).contiguous(), "y": [labels.numpy()]}


@pytest.mark.parametrize("transform", [None, lambda batch: (batch["x"] + 1, batch["y"], "told")])
@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"batch_size": None}])
def test_what_is_moved_is_the_tree_that_it_was(settings, transform):
    plain = FastLoader(numbered(50), **{"batch_size": 8, **settings}, transform=transform)
    moved = FastLoader(
        numbered(50), **{"batch_size": 8, **settings}, transform=transform, device="meta"
    )
    kinds = pytree.tree_structure
    for here, there in zip(plain, moved, strict=True):
        leaves = pytree.tree_leaves(there)
        assert kinds(here) == kinds(there)
        for one, other in zip(pytree.tree_leaves(here), leaves, strict=True):
            if isinstance(one, torch.Tensor):
                assert other.device.type == "meta"
                assert (one.dtype, one.shape, one.stride()) == (
                    *(other.dtype, other.shape, other.stride()),
                )


def test_the_cpu_is_where_batches_are_already():
    source = torch.arange(10)
    for batch in FastLoader(source, 4, device="cpu"):
        batch.fill_(-1)
    assert (source == -1).all()


def test_an_early_end_leaves_no_thread():
    before = os_threads.counted()
    running = iter(FastLoader(numbered(5000), 3, shuffle=True, num_threads=2, device="meta"))
    next(running)
    del running
    assert os_threads.fell_to(before)


def test_what_fails_in_a_thread_is_raised_in_its_turn():
    loader = FastLoader(
        torch.arange(30), 4, transform=lambda one: 1 // int(8 not in one), device="meta"
    )
    with pytest.raises(ZeroDivisionError):
        list(loader)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)], ids=str)
def test_a_device_that_is_not_here_is_refused(device):
    with pytest.raises(ValueError, match=f"device={device}: torch sees 0 CUDA devices here"):
        FastLoader(torch.arange(10), device=device)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("width", [5, 50_000])
def test_batches_on_cuda_are_right_whoever_holds_them(num_threads, width):
    loader = FastLoader(
        numbered(700, width), 16, shuffle=True, num_threads=num_threads, device="cuda"
    )
    held = []
    for epoch in range(3):
        seen = []
        for number, batch in enumerate(loader):
            assert batch["x"].is_cuda
            seen.append(batch["y"][0])
            held = [*held[-5:], batch] if number % 3 else held
            batch["x"].mul_(1)  # work that is queued behind the copy, and held up by nothing
            assert all((one["x"] == one["y"][0].view(-1, 1)).all() for one in held)
        assert sorted(torch.cat(seen).tolist()) == list(range(700)), epoch


@pytest.mark.gpu
@needs_cuda
def test_no_buffer_is_written_to_while_it_is_copied_from():
    source = torch.arange(4000).view(-1, 1).expand(4000, 20_000).contiguous()
    loader = FastLoader(source, 100, num_threads=2, prefetch_factor=1, device="cuda")
    sums = [(batch == batch[:, :1]).all() for batch in loader]  # nothing waits in this loop
    assert torch.stack(sums).all()
    assert loader._pool is not None
    arrays = [home.take(1) for home in loader._pool.homes]
    assert all(torch.from_numpy(array).is_pinned() for array in arrays)


@pytest.mark.gpu
@needs_cuda
def test_a_batch_waits_for_its_copy_on_the_consumers_own_stream():
    source = converted(np.random.default_rng(0).integers(0, 255, (600, 3, 64, 64), dtype=np.uint8))
    here = list(FastLoader(source, 64))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        there = [batch * 2 for batch in FastLoader(source, 64, device="cuda")]
    stream.synchronize()
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one * 2, other.cpu())


@pytest.mark.gpu
@needs_cuda
def test_leaving_early_waits_for_what_is_under_way():
    loader = FastLoader(numbered(3000, 20_000), 64, shuffle=True, device="cuda")
    for _ in range(20):
        for batch in loader:
            assert (batch["x"] == batch["y"][0].view(-1, 1)).all()
            break
