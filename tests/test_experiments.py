"""Every experiment that ships: one question, and combinations that are jobs."""

from __future__ import annotations

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from options import REPOSITORY, compose_job

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
    jobs = [repr(compose_job(f"experiment={name}", *one)) for one in found]
    assert len(set(jobs)) == len(found) > 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_begins_with_its_question(name):
    first = (REPOSITORY / "experiments" / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")
