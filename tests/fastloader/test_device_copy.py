"""FastLoader with device=: batches are copied to the device in the background."""

from __future__ import annotations

import numpy as np
import os_threads
import pytest
import torch
from torch.utils import _pytree as pytree

from fastloop import FastLoader, converted

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def numbered_rows(count: int, width: int = 5) -> dict:
    labels = torch.arange(count)
    return {"x": labels.view(-1, 1).expand(count, width).contiguous(), "y": [labels.numpy()]}


@pytest.mark.parametrize("transform", [None, lambda batch: (batch["x"] + 1, batch["y"], "text")])
@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"batch_size": None}])
def test_batch_on_a_device_keeps_its_tree_structure(settings, transform):
    plain = FastLoader(numbered_rows(50), **{"batch_size": 8, **settings}, transform=transform)
    moved = FastLoader(
        numbered_rows(50), **{"batch_size": 8, **settings}, transform=transform, device="meta"
    )
    structure = pytree.tree_structure
    for batch, moved_batch in zip(plain, moved, strict=True):
        leaves = pytree.tree_leaves(moved_batch)
        assert structure(batch) == structure(moved_batch)
        for leaf, other in zip(pytree.tree_leaves(batch), leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                assert other.device.type == "meta"
                assert (leaf.dtype, leaf.shape, leaf.stride()) == (
                    *(other.dtype, other.shape, other.stride()),
                )


def test_device_cpu_copies_nothing():
    source = torch.arange(10)
    for batch in FastLoader(source, 4, device="cpu", copy=False):
        batch.fill_(-1)
    assert (source == -1).all()


def test_abandoned_epoch_on_a_device_ends_its_threads():
    before = os_threads.count_threads()
    running = iter(FastLoader(numbered_rows(5000), 3, shuffle=True, num_threads=2, device="meta"))
    next(running)
    del running
    assert os_threads.falls_to(before)


def test_transform_error_is_raised_with_a_device():
    loader = FastLoader(
        torch.arange(30), 4, transform=lambda batch: 1 // int(8 not in batch), device="meta"
    )
    with pytest.raises(ZeroDivisionError):
        list(loader)


def test_loader_names_a_wrong_device():
    with pytest.raises(ValueError, match="device='toaster': allowed are cpu, cuda"):
        FastLoader(torch.arange(10), device="toaster")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)], ids=str)
def test_loader_rejects_an_absent_device(device):
    with pytest.raises(ValueError, match=f"device={device}: torch sees 0 CUDA devices here"):
        FastLoader(torch.arange(10), device=device)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("width", [5, 50_000])
def test_batches_on_cuda_stay_correct_while_kept(num_threads, width):
    loader = FastLoader(
        numbered_rows(700, width), 16, shuffle=True, num_threads=num_threads, device="cuda"
    )
    kept = []
    for epoch in range(3):
        seen = []
        for number, batch in enumerate(loader):
            assert batch["x"].is_cuda
            seen.append(batch["y"][0])
            kept = [*kept[-5:], batch] if number % 3 else kept
            batch["x"].mul_(1)  # queued behind the copy without waiting for it
            assert all((old["x"] == old["y"][0].view(-1, 1)).all() for old in kept)
        assert sorted(torch.cat(seen).tolist()) == list(range(700)), epoch


@pytest.mark.gpu
@needs_cuda
def test_buffer_is_not_overwritten_while_being_copied():
    source = torch.arange(4000).view(-1, 1).expand(4000, 20_000).contiguous()
    loader = FastLoader(source, 100, num_threads=2, prefetch_factor=1, device="cuda")
    sums = [(batch == batch[:, :1]).all() for batch in loader]  # this loop waits for nothing
    assert torch.stack(sums).all()


@pytest.mark.gpu
@needs_cuda
def test_batch_waits_for_its_copy_on_the_consumers_stream():
    source = converted(np.random.default_rng(0).integers(0, 255, (600, 3, 64, 64), dtype=np.uint8))
    on_cpu = list(FastLoader(source, 64))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        on_cuda = [batch * 2 for batch in FastLoader(source, 64, device="cuda")]
    stream.synchronize()
    for batch, doubled in zip(on_cpu, on_cuda, strict=True):
        torch.testing.assert_close(batch * 2, doubled.cpu())


@pytest.mark.gpu
@needs_cuda
def test_abandoned_epoch_waits_for_running_copies():
    loader = FastLoader(numbered_rows(3000, 20_000), 64, shuffle=True, device="cuda")
    for _ in range(20):
        for batch in loader:
            assert (batch["x"] == batch["y"][0].view(-1, 1)).all()
            break
