"""Ranks of torch.distributed share an epoch without being told, also under the usual trainers."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import fork_server
import pytest
import torch
import torch.distributed as dist
from options import REPOSITORY, SUPPORT
from rank_commands import run_two_ranks
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from fastloop import FastLoader

SCRIPT = SUPPORT / "ddp_loops.py"


def run_ranks(trainer: str, folder: Path) -> list[subprocess.CompletedProcess]:
    """Run the script by torchrun, or with a trainer as two ranks that find their imports made."""
    if trainer != "plain":
        return run_two_ranks(trainer, str(folder), cwd=folder, module=str(SCRIPT), GROUP_RANK="0")
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    arguments = ("--standalone", "--nproc_per_node=2", str(SCRIPT), trainer, str(folder))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    return [fork_server.run("torch.distributed.run", arguments, folder, environment)]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "trainer", ["plain", "accelerate", "lightning", "lightning_sampler", "transformers"]
)
def test_two_processes_share_each_epoch_without_being_told(tmp_path, trainer):
    if trainer != "plain" and find_spec(trainer.partition("_")[0]) is None:
        pytest.skip(f"{trainer} is not installed")
    for _ in range(2):
        ranks = run_ranks(trainer, tmp_path)
        errors = "".join(rank.stderr for rank in ranks)
        if "Gloo connectFullMesh failed" not in errors:
            break  # else a connection of another test's has reached Gloo's port before its peer did
    assert not any(rank.returncode for rank in ranks), errors[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first[0] == second[0] == 7
    for batches, others in zip(first[1], second[1], strict=True):
        samples, other_samples = sum(batches, []), sum(others, [])  # noqa: RUF017
        assert len(batches) == len(others) == 7
        assert not set(samples) & set(other_samples)
        assert sorted(samples + other_samples) == [*range(50)]
    assert first[1][0] != first[1][1]


@pytest.fixture
def group_of_three(tmp_path, monkeypatch):
    """torch.distributed's answers in rank 1 of 3, of which only this one runs."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    yield
    dist.destroy_process_group()


def samples(loader: FastLoader) -> list[int]:
    return [index for batch in loader for index in batch.tolist()]


@pytest.mark.usefixtures("group_of_three")
def test_length_state_and_explicit_ranks_follow_the_group():
    rows = torch.arange(30)
    loader = FastLoader(rows, 2)
    assert samples(loader) == [*range(1, 30, 3)]
    assert len(loader) == 5
    assert loader.state_dict()["settings"]["world_size"] == 3
    assert samples(FastLoader(rows, 2, rank=0, world_size=1)) == [*range(30)]
    assert samples(FastLoader(rows, 2, rank=2, world_size=3)) == [*range(2, 30, 3)]
    assert samples(FastLoader(rows, 2, sampler=[5, 6, 7])) == [6]
    sampler = DistributedSampler(rows, 3, 2, shuffle=False)
    assert samples(FastLoader(rows, 2, sampler=sampler)) == [*range(2, 30, 3)]
    batches = BatchSampler(sampler, 2, drop_last=False)
    assert samples(FastLoader(rows, batch_sampler=batches)) == [*range(2, 30, 3)]


@pytest.mark.usefixtures("group_of_three")
def test_sampler_that_may_differ_between_ranks_is_refused_in_a_group():
    rows = torch.arange(30)
    for settings in (
        {"sampler": RandomSampler(rows)},
        {"batch_sampler": BatchSampler(RandomSampler(rows), 2, False)},
    ):
        with pytest.raises(
            ValueError, match="in a group of 3 processes: allowed are a Distributed"
        ):
            FastLoader(rows, **settings)
        assert len(samples(FastLoader(rows, **settings, rank=0, world_size=1))) == 30


def test_rank_and_world_size_are_given_together():
    with pytest.raises(ValueError, match="rank=None with world_size=2: give both, or neither"):
        FastLoader(torch.arange(9), world_size=2)
