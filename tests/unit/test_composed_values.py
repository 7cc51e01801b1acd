"""Configurations made of others, with other values or several options, equal those of Hydra."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fastloop.config.build_jobs import build_option
from fastloop.config.catalogue import default_options, options_of
from fastloop.config.command_line import read_command_line, read_spelling
from fastloop.config.composed_values import compose_values
from fastloop.config.hydra_api import compose_api, hydra_compose

parse = OverridesParser.create().parse_override


def compose_by_hydra(overrides):
    line = read_command_line(overrides)
    with compose_api(line) as name:
        cfg = hydra_compose(name, line.overrides)
    own = OmegaConf.masked_copy(cfg, [group for group in cfg if group != "hydra"])
    return OmegaConf.to_container(own, resolve=True)


@pytest.mark.heavy
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


OPTIONS = {group: options_of(group) for group in default_options()}
COUNT = max(map(len, OPTIONS.values()))


def without_requirements(node):
    """The node without what pip would install, which is no setting of an object."""
    if not isinstance(node, dict):
        return node
    return {n: without_requirements(each) for n, each in node.items() if n != "requirements"}


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.heavy] * (n % 11 > 0)) for n in range(COUNT)]
)
def test_choices_from_all_groups_make_what_hydra_composes_and_builds(number):
    """Each option is in one of the jobs."""
    job = tuple(f"{name}={each[number % len(each)]}" for name, each in OPTIONS.items())
    of_hydra = compose_by_hydra(job)
    assert repr(compose_values(*job)) == repr(of_hydra)  # in the same order
    for group in OPTIONS:
        built = build_option(group, of_hydra[group])
        assert built == instantiate(without_requirements(of_hydra[group]), _convert_="all")
    with_values = (*job, "epochs=7", "+loader.own=1")
    assert compose_values(*with_values) == of_hydra | {
        "epochs": 7,
        "loader": of_hydra["loader"] | {"own": 1},
    }


@pytest.mark.heavy
@pytest.mark.parametrize(
    "overrides",
    [
        ("dataset=photos", "decoder=opencv", "loader=hdf5"),
        ("loader=np_memmap", "store@loader.store=hdf5"),
        ("loader=np_memmap", "dataset=digits", "store@loader.store=hdf5"),
        ("decoder=torchvision", "order=sequential", "dataset=csv_images"),
        ("decoder=opencv", "loader=hdf5"),
        ("dataset=image_folder", "loader=fastloop", "transform=normalize"),
        ("experiment=decoders", "loader=raw"),
        ("loader=raw", "experiment=peers", "dataset=digits"),
        ("benchmark=[traversal,inference]", "model=resnet18"),
        ("loader=raw", "loader=hdf5", "order=sequential"),
        ("~tracker", "loader=hdf5"),
    ],
)
def test_choices_that_change_the_same_part_are_composed_by_hydra(overrides):
    assert repr(compose_values(*overrides)) == repr(compose_by_hydra(overrides))


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
