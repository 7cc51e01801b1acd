"""Shipped experiments: each asks one question, and its combinations are valid jobs."""

from __future__ import annotations

import re

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from options import REPOSITORY, compose_job

from experiments.lib import side_by_side
from experiments.lib.job_file import overrides_of
from experiments.pinning import run as pinning
from experiments.pinning import settings as pinning_settings
from experiments.pipeline_steps import settings as pipeline_steps_settings
from fastloop.config.catalogue import experiment_files

EXPERIMENTS = experiment_files()
FOLDER = REPOSITORY / "experiments"
QUESTIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "README.md").is_file())


def combinations(name: str) -> list[list[str]]:
    """Overrides of each job that Hydra's sweeper makes of the experiment's parameters."""
    node = OmegaConf.load(EXPERIMENTS[name])
    parameters = [f"{key}={value}" for key, value in node.hydra.sweeper.params.items()]
    (batch,) = BasicSweeper.split_arguments(
        OverridesParser.create().parse_overrides(parameters), None
    )
    return [list(overrides) for overrides in batch]


def count_changes(job: list[str], other: list[str]) -> int:
    return sum(one != another for one, another in zip(job, other, strict=True))


@pytest.mark.heavy
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_value_of_an_experiment_makes_a_distinct_job(name):
    first, *others = combinations(name)
    sweep = [first, *(job for job in others if count_changes(first, job) == 1)]
    ranks = [[part for part in job if part.startswith("launcher.")] for job in sweep]
    jobs = [repr(compose_job(f"experiment={name}", *job)) for job in sweep]
    assert len({*zip(jobs, map(str, ranks), strict=True)}) == len(sweep) > 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_file_begins_with_its_question(name):
    first = EXPERIMENTS[name].read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")


def test_experiments_are_named_by_folder_and_file():
    assert {"quickstart", "seed_traversal", "peers", "peers_jpeg"} <= EXPERIMENTS.keys()
    assert EXPERIMENTS["quickstart"] == FOLDER / "quickstart" / "sweep.yaml"
    assert EXPERIMENTS["peers"] == FOLDER / "peers" / "sweep.yaml"
    assert EXPERIMENTS["peers_jpeg"] == FOLDER / "peers" / "jpeg.yaml"


@pytest.mark.parametrize("question", QUESTIONS)
def test_experiment_readme_has_its_sections(question):
    text = (FOLDER / question / "README.md").read_text()
    for section in ("Question", "Run", "Result"):
        assert re.search(rf"^\*\*{section}", text, re.M), section


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.md")), ids=lambda path: path.parent.name)
def test_links_and_commands_of_a_readme_exist_in_experiments(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("http") or (path.parent / target).exists(), target
    for module in re.findall(r"python -m (experiments\.[\w.]+)", text):
        assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file(), module
    for name in re.findall(r"experiment=(\w+)(?!\w|<)", text):
        assert name in EXPERIMENTS


def test_index_of_experiments_has_every_question():
    index = (FOLDER / "README.md").read_text()
    for name in QUESTIONS:
        title = (FOLDER / name / "README.md").read_text().partition("\n")[0].removeprefix("# ")
        assert f"| [{name}]({name}/README.md) | {title} |" in index


@pytest.mark.heavy
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("settings", [pinning_settings, pipeline_steps_settings])
def test_every_row_of_a_study_is_a_distinct_job(settings, device):
    rows = [{**row, "device": device} for row in settings.settings(device).values()]
    jobs = [compose_job(*overrides_of(row)) for row in rows]
    assert len({repr(job) for job in jobs}) == len(jobs) >= 9
    assert {job.device for job in jobs} == {device}


def test_gains_are_relative_to_the_previous_or_first_row():
    rates = {"a": 4.0, "pin_memory, non_blocking, 4": None, "b": 2.0, "c": 1.0}
    rows = [
        side_by_side.Row(name=name, seconds=(seconds,), samples=1, wait_s=1.0, epoch_s=seconds)
        if seconds
        else side_by_side.Row(name=name, reason="unsupported: here")
        for name, seconds in rates.items()
    ]

    def gains(*relative_to_first):
        lines = side_by_side.table(rows, *relative_to_first).splitlines()
        assert "pin_memory, non_blocking, 4  unsupported: here" in lines
        return [line.partition(" x ")[2][:4] for line in lines[1:]]

    assert gains() == ["", "", "2.00", "2.00"]
    assert gains(True) == ["", "", "2.00", "4.00"]


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_pinning_study_measures_rows_and_reports_those_that_need_cuda(monkeypatch, outputs):
    monkeypatch.setattr(pinning_settings, "AHEAD", (0, 2))
    settings = {"dataset.count": 64, "dataset.shape": [4], "batch_size": 8, "epochs": 1}
    settings["min_window_s"] = 0
    rows = pinning.measure("cpu", trials=1, more=settings)
    assert [bool(row.reason) for row in rows] == [False] * 4 + [True] * 8
    assert all(row.samples_per_s > 0 and row.wait_s > 0 for row in rows[:4])
    assert all(row.reason.startswith("unsupported: pin") for row in rows[4:])
    assert side_by_side.table(rows).count("\n") == 12
