"""Every experiment that ships: one question, and combinations that are jobs."""

from __future__ import annotations

import importlib

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from options import REPOSITORY, compose_job, options

from fastloop.config import register_experiments

EXPERIMENTS = sorted(path.stem for path in (REPOSITORY / "experiments").glob("*.yaml"))


def combinations(name: str) -> list[list[str]]:
    """What Hydra's sweeper makes of the experiment's own."""
    node = OmegaConf.load(REPOSITORY / "experiments" / f"{name}.yaml")
    swept = [f"{key}={value}" for key, value in node.hydra.sweeper.params.items()]
    (batch,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(swept), None)
    return [list(one) for one in batch]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_combination_is_a_job(name):
    register_experiments()
    found = combinations(name)
    ranks = [[part for part in one if part.startswith("launcher.")] for one in found]
    jobs = [repr(compose_job(f"experiment={name}", *one)) for one in found]
    assert len({*zip(jobs, map(str, ranks), strict=True)}) == len(found) > 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_begins_with_its_question(name):
    first = (REPOSITORY / "experiments" / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")


@pytest.fixture
def script(monkeypatch):
    """A module of experiments/ by its name."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "experiments"))
    return importlib.import_module


GROUPS = ("loader", "dataset", "order", "transform", "placement", "benchmark", "model")


@pytest.mark.parametrize(
    ("group", "option"),
    [(group, option) for group in GROUPS for option in options(group) if option != "custom"],
)
def test_a_job_without_hydra_is_the_command_lines(script, group, option):
    made = script("plain_jobs").plain_job(**{group: option}, num_workers=2)
    assert made == compose_job(f"{group}={option}", "num_workers=2")


def test_settings_of_options_are_the_command_lines_too(script):
    given = {"dataset": "photos", "dataset__crop": [40, 56], "decoder": "opencv", "seed": 3}
    made = script("plain_jobs").plain_job(**given, loader="hdf5", learning_rate=0.5)
    wanted = ("dataset=photos", "dataset.crop=[40,56]", "decoder=opencv", "seed=3", "loader=hdf5")
    assert made == compose_job(*wanted, "learning_rate=0.5")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["pipeline_steps", "pinning"])
def test_every_row_is_a_job(script, name, device):
    seen = script(name).jobs(device, dataset__count=8)
    assert len({repr(job) for job in seen.values()}) == len(seen) >= 9
    assert all(job.dataset.count == 8 and job.device == device for job in seen.values())


def test_gains_are_against_the_row_above_or_the_first(script):
    side_by_side = script("side_by_side")
    rates = {"a": 4.0, "pin_memory, non_blocking, 4": None, "b": 2.0, "c": 1.0}
    rows = [
        side_by_side.Row(name=name, seconds=(one,), samples=1, wait_s=1.0, epoch_s=one)
        if one
        else side_by_side.Row(name=name, reason="unsupported: here")
        for name, one in rates.items()
    ]

    def gains(*to_the_first):
        lines = side_by_side.table(rows, *to_the_first).splitlines()
        assert "pin_memory, non_blocking, 4  unsupported: here" in lines
        return [line.partition(" x ")[2][:4] for line in lines[1:]]

    assert gains() == ["", "", "2.00", "2.00"]
    assert gains(True) == ["", "", "2.00", "4.00"]


@pytest.mark.slow
def test_rows_are_measured_and_what_needs_cuda_says_so_elsewhere(script, monkeypatch, outputs):
    pinning = script("pinning")
    monkeypatch.setattr(pinning, "AHEAD", (0, 2))
    small = {"dataset__count": 64, "dataset__shape": [4], "batch_size": 8, "epochs": 1}
    found = pinning.rows("cpu", trials=1, **small)
    shown = script("side_by_side").table(found)
    assert [bool(row.reason) for row in found] == [False] * 4 + [True] * 8
    assert all(row.samples_per_s > 0 and row.wait_s > 0 for row in found[:4])
    assert all(row.reason.startswith("unsupported: pin") for row in found[4:])
    assert shown.count("\n") == 12
