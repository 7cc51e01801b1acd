"""FastLoader delivers what DataLoader does and never changes a batch that is still in use."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import traceback
from collections import namedtuple
from contextlib import closing
from itertools import islice

import numpy as np
import os_threads
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from options import require_library
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
)

from fastloop.core.seeds import epoch_seed
from fastloop.fastloader import FastLoader

Pair = namedtuple("Pair", "x y")
DTYPES = [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64]


def numbered_rows(count: int, shape: tuple[int, ...] = (3,)) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows filled with their own index, and these indices as labels."""
    labels = torch.arange(count)
    return labels.view(-1, *[1] * len(shape)).expand(count, *shape).clone(), labels


def check_rows(batches) -> list[int]:
    """Labels in order of delivery, after a check that each row still holds its label."""
    seen: list[int] = []
    for rows, labels in batches:
        assert (rows.flatten(1) == labels.view(-1, 1)).all()
        seen += labels.tolist()
    return seen


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"num_workers": -1}, {"collate_fn": 3}, {"rank": 1}]
)
def test_traceback_of_a_wrong_setting_ends_in_the_constructor(wrong):
    with pytest.raises((ValueError, TypeError)) as error:
        FastLoader([1, 2], **wrong)
    frames = traceback.extract_tb(error.value.__traceback__)
    assert [frame.name for frame in frames][1:] == ["__init__"]
    assert error.value.__cause__ is None


@given(
    count=st.integers(1, 200),
    batch_size=st.integers(1, 70),
    drop_last=st.booleans(),
    num_threads=st.integers(0, 3),
    width=st.integers(0, 9),
    stop=st.integers(0, 6),
)
def test_epoch_equals_that_of_torch_dataloader(
    count, batch_size, drop_last, num_threads, width, stop
):
    source = numbered_rows(count, (width,))
    sizes = {"batch_size": batch_size, "drop_last": drop_last}
    ours = FastLoader(
        source,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
        num_threads=num_threads,
        seed=0,  # draws the permutation alone
        **sizes,
    )
    dataset = TensorDataset(*source)
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
    theirs = DataLoader(dataset, sampler=sampler, **sizes)
    assert len(ours) == len(theirs)
    expected = [labels.tolist() for _, labels in theirs]
    list(islice(ours, stop))  # an abandoned epoch consumes its permutation, as in DataLoader
    ours.generator.manual_seed(3)
    assert [labels.tolist() for _, labels in ours] == expected


@given(
    count=st.integers(1, 90),
    batch_size=st.integers(1, 20),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_ranks_share_an_epoch_like_distributed_sampler(count, batch_size, world_size, epoch):
    source = numbered_rows(count)
    seed = epoch_seed(0, epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    for rank in range(world_size):
        mine = FastLoader(source, batch_size, True, rank=rank, world_size=world_size, seed=0)
        mine.set_epoch(epoch)
        sampler = DistributedSampler(range(count), world_size, rank, shuffle=True, seed=seed)
        seen = check_rows(mine)
        assert seen == list(sampler)
        assert len(mine) == -(-len(seen) // batch_size)
        assert set(seen) <= set(order.tolist())


@given(count=st.integers(1, 90), batch_size=st.integers(1, 20), data=st.data())
def test_saved_state_resumes_a_shuffled_epoch(count, batch_size, data):
    loader = FastLoader(numbered_rows(count), batch_size, shuffle=True, seed=0)
    loader.set_epoch(2)
    batches = [labels.tolist() for _, labels in loader]
    following = [labels.tolist() for _, labels in loader]
    taken = data.draw(st.integers(0, len(batches) - 1))
    loader.set_epoch(2)
    running = iter(loader)
    for _ in range(taken):
        next(running)
    state = loader.state_dict()
    other = FastLoader(loader.source, batch_size, shuffle=True, seed=0)
    other.load_state_dict(state)
    assert [labels.tolist() for _, labels in other] == batches[taken:]
    assert [labels.tolist() for _, labels in other] == following


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)], ids=str)
def test_loader_delivers_every_dtype_and_shape(dtype, shape):
    source = torch.randint(0, 2, (50, *shape)).to(dtype)
    loader = FastLoader(source, 7, sampler=torch.arange(50).flip(0))
    assert torch.equal(torch.cat(list(loader)), source.flip(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: {"x": x, "more": [y, {"z": x.numpy()}]},
        Pair,
        lambda x, y: ([x], (y,)),
        lambda x, y: y.numpy(),
    ],
)
def test_batch_has_the_tree_structure_of_its_source(make):
    source = make(*numbered_rows(10))
    (batch,) = FastLoader(source, 10)
    structure = torch.utils._pytree.tree_structure
    assert structure(batch) == structure(source)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_loader_never_changes_a_delivered_batch(num_threads):
    loader = FastLoader(numbered_rows(5000), 7, shuffle=True, num_threads=num_threads)
    kept = [batch for _ in range(3) for batch in loader]
    assert sorted(check_rows(kept)) == sorted([*range(5000)] * 3)
    rows = [batch[0][1:2].numpy() for batch in kept if len(batch[0]) > 1]  # views of views
    values = [row.copy() for row in rows]
    del kept
    gc.collect()
    for _ in range(3):
        for batch, _labels in loader:
            batch.fill_(-1)
    assert all((row == value).all() for row, value in zip(rows, values, strict=True))
    assert sorted(check_rows(loader)) == [*range(5000)]  # the source is unchanged


def test_loader_keeps_batches_that_autograd_saved():
    source = torch.rand(600, 4)
    weight = torch.rand(4, requires_grad=True)
    loader = FastLoader(source, 10, num_threads=2)
    losses = [(batch * weight).sum() for batch in loader]
    list(loader)
    torch.stack(losses).sum().backward()
    torch.testing.assert_close(weight.grad, source.sum(0))


@pytest.mark.parametrize("width", [4, 1 << 14], ids=["batches", "parts of batches"])
@pytest.mark.parametrize("settings", [{"batch_size": 128}, {"batch_sampler": [range(256)] * 9}])
def test_writing_to_a_batch_leaves_autograds_saved_batch_valid(width, settings):
    weight = torch.ones(width, requires_grad=True)
    saved: list[torch.Tensor] = []
    batches = iter(FastLoader(torch.ones(1024, width), **settings, num_threads=1))
    for batch in batches:
        for loss in saved:  # of the previous batch: neither write may count as a write to that one
            batch.mul_(2)
            loss.backward()
        saved = [(batch * weight).sum()]
    assert weight.grad is not None
    assert weight.grad.min() > 0


def test_loader_accepts_samplers_and_batch_samplers_of_torch():
    source = numbered_rows(30)
    batches = [*BatchSampler(range(29, -1, -1), 4, drop_last=False), [3], [5, 5, 5]]
    loader = FastLoader(source, batch_sampler=batches)
    assert [labels.tolist() for _, labels in loader] == batches
    assert len(loader) == len(batches)
    assert check_rows(FastLoader(source, 4, sampler=[7, 7, 0])) == [7, 7, 0]
    assert check_rows(FastLoader(source, 4, sampler=iter(range(5)))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 7),
        ("shuffle", False),
        ("seed", 5),
        ("drop_last", True),
        ("rank", 1),
        ("world_size", 3),
        ("generator", torch.Generator().manual_seed(1)),
        ("transform", lambda batch: (batch[0] + 1, batch[1])),
        ("source", numbered_rows(60)),
    ],
)
def test_settings_may_be_assigned_between_epochs(name, value):
    settings = {"batch_size": 8, "shuffle": True, "rank": 0, "world_size": 2}
    loader = FastLoader(numbered_rows(100), **settings)
    assert len(list(loader)) == 7
    setattr(loader, name, value)
    expected = FastLoader(**{"source": numbered_rows(100)} | settings | {name: value})
    expected.set_epoch(1)
    batches = [torch.cat(leaves) for leaves in zip(*loader, strict=True)]
    if name == "generator":
        value.manual_seed(1)
    same = [torch.cat(leaves) for leaves in zip(*expected, strict=True)]
    assert all(map(torch.equal, batches, same))
    assert len(loader) == len(expected)


def test_transform_is_applied_to_every_batch():
    loader = FastLoader(numbered_rows(10), 4, transform=lambda pair: pair[0].float() / 2)
    assert torch.cat(list(loader))[:, 0].tolist() == [number / 2 for number in range(10)]


def fail_at_7(batch):
    if 7 in batch[1]:
        raise ZeroDivisionError("seven")
    return batch


def add_labels(seen: list, loader: FastLoader) -> None:
    for _, labels in loader:  # a generator would keep the iterator in the traceback
        seen.extend(labels.tolist())


def test_thread_error_is_raised_at_its_batch_and_ends_all_threads():
    before = os_threads.count_threads()
    loader = FastLoader(numbered_rows(40), 2, transform=fail_at_7, num_threads=3)
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError, match="seven") as kept:
        add_labels(seen, loader)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert os_threads.falls_to(before), kept  # although the error, and its traceback, are kept


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_abandoned_epoch_ends_its_threads(taken):
    before = os_threads.count_threads()
    loader = FastLoader(numbered_rows(5000), 3, num_threads=2)
    running = iter(loader)
    for _ in range(taken):
        next(running)
    del running
    assert os_threads.falls_to(before)


@pytest.mark.parametrize("index", [-1, 10])
def test_loader_rejects_an_index_out_of_bounds(index):
    with pytest.raises(IndexError, match=f"index {index} is out of bounds for 10 samples"):
        list(FastLoader(numbered_rows(10), 2, sampler=[0, index]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"sampler": [1], "shuffle": True}, "shuffle=True with a sampler"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler excludes"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": "a", "world_size": 2}, "rank='a': allowed are 0 to world_size - 1"),
        ({"drop_last": "no"}, "drop_last='no': allowed are True and False"),
        ({"copy": "no"}, "copy='no': allowed are True and False"),
        ({"timeout": "a"}, "timeout='a': allowed are seconds"),
    ],
)
def test_loader_rejects_contradictory_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        FastLoader(numbered_rows(10), **settings)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"sampler": 5}, "an iterable of indices and None"),
        ({"sampler": "abc"}, "an iterable of indices and None"),
        ({"batch_sampler": 5}, "an iterable of lists of indices and None"),
        ({"generator": 5}, "a torch.Generator and None"),
        ({"transform": 5}, "a function and None"),
        ({"worker_init_fn": 5}, "a function and None"),
    ],
)
@pytest.mark.parametrize("source", [numbered_rows(10), range(10)], ids=["tree", "dataset"])
def test_loader_rejects_values_of_another_kind(source, settings, allowed):
    ((name, value),) = settings.items()
    with pytest.raises(TypeError, match=f"^{name}={value!r}: allowed are {allowed}$"):
        FastLoader(source, **settings)


@pytest.mark.parametrize("epoch", [-1, 1.5, None])
def test_set_epoch_rejects_what_is_no_number_of_an_epoch(epoch):
    with pytest.raises(ValueError, match=f"^epoch={epoch}: allowed is 0 or more$"):
        FastLoader(numbered_rows(10)).set_epoch(epoch)


@pytest.mark.parametrize(
    "source",
    [(), (torch.zeros(3), torch.zeros(4)), ("text", torch.zeros(1)), torch.tensor(1)],
    ids=str,
)
def test_loader_rejects_invalid_sources(source):
    with pytest.raises(ValueError, match="a source "):
        FastLoader(source)


def test_thousands_of_small_epochs_leak_nothing():
    loader = FastLoader(numbered_rows(64), 8, shuffle=True, num_threads=2)
    process, random = psutil.Process(), np.random.default_rng(0)
    kept: list = []
    threads, files = os_threads.count_threads(), process.num_fds()
    for _ in range(2000):
        stop = int(random.integers(10))
        kept = [*kept[-3:], *islice(loader, stop)]
        assert sorted(check_rows(kept[-stop:] if stop else [])) is not None
    assert os_threads.falls_to(threads)
    assert process.num_fds() < files + 10  # threads of other tests may hold a few
    if loader._reading.native is not None:
        pools = loader._reading.native.pools
        assert pools.batches.free_nbytes() + pools.orders.free_nbytes() < 1 << 20


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, also where the test runner has changed its handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_loader_survives_an_interrupted_notebook_cell():
    loader = FastLoader(numbered_rows(5000), 7, shuffle=True, num_threads=2)

    async def cell(interrupted: bool) -> int:
        rows = 0
        for batch in loader:
            rows += len(check_rows([batch]))
            if interrupted and rows > 100:
                signal.raise_signal(signal.SIGINT)
        return rows

    threads = os_threads.count_threads()
    kernel = asyncio.new_event_loop()  # as ipykernel runs cells
    with closing(kernel):
        with pytest.raises(KeyboardInterrupt):
            kernel.run_until_complete(cell(True))
        assert os_threads.falls_to(threads)
        assert kernel.run_until_complete(cell(False)) == 5000


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("end", ["os._exit(0)", "raise SystemExit"])
def test_loader_works_in_a_forked_process(tmp_path, end):
    program = tmp_path / "forks.py"
    program.write_text(
        "import os, torch\n"
        "from fastloop.fastloader import FastLoader\n"
        "loader = FastLoader(torch.arange(5000), 7, shuffle=True, num_threads=2)\n"
        "running = iter(loader); next(running)\n"
        "child = os.fork()\n"
        "total = sum(int(batch.sum()) for batch in loader)\n"
        "assert total == sum(range(5000))\n"
        "if child == 0:\n"
        f"    {end}\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    command = [sys.executable, "-W", "ignore", str(program)]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.heavy
@pytest.mark.slow
def test_program_exits_while_loader_threads_run():
    program = (
        "import torch; from fastloop import FastLoader; "
        "running = iter(FastLoader(torch.rand(100_000, 9), 7, shuffle=True, num_threads=2)); "
        "next(running)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.slow
def test_fastloader_imports_only_torch_and_numpy():
    program = "import sys, fastloop.fastloader; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    package_modules = {name for name in process.stdout.split() if name.startswith("fastloop.")}
    core = {
        f"fastloop.core{module}"
        for module in (
            "",
            ".cgroup",
            ".current_batch",
            ".exit_status",
            ".fork_garbage",
            ".seeds",
            ".sharding",
            ".spans",
            ".text",
            ".thread_turns",
            ".torch_threads",
        )
    }
    assert all(name in core or name.startswith("fastloop.fastloader") for name in package_modules)
    assert not {"pydantic", "optree", "tensordict", "hydra", "mlflow"} & {*process.stdout.split()}


def test_loader_delivers_bfloat16_with_ml_dtypes_imported():
    require_library("ml_dtypes")
    rows = torch.arange(20, dtype=torch.bfloat16)
    assert torch.equal(torch.cat(list(FastLoader(rows, 3))), rows)
