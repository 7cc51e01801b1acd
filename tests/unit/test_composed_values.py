"""Values changed in a configuration that is composed once, as in one that Hydra composes."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import OmegaConf

from fastloop.config.combinations import compose_values
from fastloop.config.command_line import read_command_line, read_spelling
from fastloop.config.hydra_compose import compose_api, hydra_compose

parse = OverridesParser.create().parse_override


def compose_by_hydra(overrides):
    line = read_command_line(overrides)
    with compose_api(line):
        return OmegaConf.to_container(hydra_compose("config", list(line.overrides)), resolve=True)


@pytest.mark.parametrize(
    "overrides",
    [
        ("epochs=3", "batch_size=null", "loader=np_memmap"),
        ("dataset=mydataset", "dataset.shape=[5,3]", "dataset.count=203", "dataset.count=7"),
        ("loader=hdf5", "loader.store.chunk_rows=5", "loader.store=null"),
        ("dataset._target_=mine.Data", "+dataset.count=5", "seed=1", "dataset.count=6"),
        ("transform=augment", "transform.where=worker", "seed=${epochs}", "epochs='4'"),
        ("experiment=peers_normalized", "batch_size=9", "loader=peers/fastloop_converting"),
        ("loader=raw", "hydra.job.chdir=false", "precision=bf16"),
    ],
)
def test_changed_values_are_those_that_hydra_composes(overrides):
    composed = [compose_values(*overrides), compose_values(*overrides[:1])]
    assert composed == [compose_by_hydra(overrides), compose_by_hydra(overrides[:1])]


@pytest.mark.parametrize("home", ["/home/anna", "/home/müller", "/home/o'neil", "/a b,c"])
def test_home_folder_of_any_name_is_one_value(monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    assert parse(read_spelling("dataset.root=~/x")).value() == f"{home}/x"
    each = parse(read_spelling("dataset.root=~/x,~/y")).sweep_string_iterator()
    assert [parse(f"x={value}").value() for value in each] == [f"{home}/x", f"{home}/y"]


@pytest.mark.parametrize("override", ["epochs=1,2", "dataset.nope=1", "epochs=[", "epochs.x=1"])
def test_wrong_value_is_refused_with_the_error_of_hydra(override):
    with pytest.raises(HydraException) as by_hydra:
        compose_by_hydra((override,))
    with pytest.raises(type(by_hydra.value)) as error:
        compose_values(override)
    assert str(error.value) == str(by_hydra.value)
    assert isinstance(error.value, ConfigCompositionException) == (override != "epochs=[")
