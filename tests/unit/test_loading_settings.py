"""The declarations of the settings that torch's DataLoader has too, against conf/ and torch."""

import inspect

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from options import compose_job
from torch.utils.data import DataLoader

from fastloop.config.messages import ConfigError
from fastloop.config.tune_space import TRIED, read_space, tune_defaults
from fastloop.core.loading_settings import DECLARED, LoadingSettings
from fastloop.core.types import Unsupported
from fastloop.trial.support import check_support

OTHER_VALUES = {"prefetch_factor": "4", "persistent_workers": "true"}
OTHER_VALUES |= {"multiprocessing_context": "spawn"}


@pytest.mark.parametrize("name", DECLARED)
def test_a_setting_is_an_argument_of_dataloader(name):
    assert name in inspect.signature(DataLoader).parameters


@pytest.mark.parametrize("name", DECLARED)
def test_the_declared_default_is_the_one_of_conf(name):
    assert getattr(compose_job().loading, name) == DECLARED[name].default


def test_tune_tries_the_declared_values():
    texts = tune_defaults()[TRIED]
    in_conf = [name for name in DECLARED if name in texts]
    parsed = OverridesParser.create().parse_overrides([f"{each}={texts[each]}" for each in in_conf])
    values = {each.key_or_group: tuple(each.sweep_iterator()) for each in parsed}
    declared = {name: each.tried for name, each in DECLARED.items() if each.tried}
    assert values == declared


@pytest.mark.parametrize("name", DECLARED)
def test_space_takes_the_settings_that_tune_may_change(name):
    texts = {None: "null", False: "false"}
    value = DECLARED[name].default
    text = f"{name}={texts[value] if isinstance(value, bool | None) else value}"
    if DECLARED[name].is_tunable:
        assert [*read_space(text, [])] == [name]
    else:
        with pytest.raises(ConfigError, match="it changes what is computed"):
            read_space(text, [])


@pytest.mark.parametrize("name", [name for name, each in DECLARED.items() if each.needs_workers])
def test_a_setting_of_workers_is_unsupported_without_workers(name):
    override = f"{name}={OTHER_VALUES[name]}"
    with pytest.raises(Unsupported, match=f"{override} needs workers: num_workers is 0"):
        check_support(compose_job("loader=raw", override))
    check_support(compose_job("loader=raw", override, "num_workers=1"))


def test_settings_without_workers_have_no_settings_of_workers():
    settings = LoadingSettings(
        batch_size=8,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        multiprocessing_context="spawn",
        drop_last=True,
    )
    assert settings.batches_ahead == 4
    assert settings.without_workers() == LoadingSettings(batch_size=8, drop_last=True)
    assert LoadingSettings().batches_ahead == 2
