"""Defaults that give way to other settings, wherever these come from: a command line or a file."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import hydra
import pytest
import yaml
from commands import run_fastloop
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from options import compose_job, require_library

from fastloop.config.build_jobs import build_request
from fastloop.config.combinations import compose_combinations
from fastloop.config.command_line import read_command_line
from fastloop.config.composed_defaults import copy_removals
from fastloop.config.messages import ConfigError
from fastloop.config.store_choice import choose_store
from fastloop.config.write_experiment import experiment_yaml
from fastloop.core.plan import without_store
from fastloop.core.types import Unsupported
from fastloop.trial.support import check_support

HIDDEN = "model._target_=my_code.HiddenNet"
WIDTH = "model._target_=my_code.WidthNet"
CLIPS = ("dataset._target_=my_code.Clips", "collate=pad")
ROWS = """
import torch

class Net(torch.nn.Module):
    def __init__(self, hidden=8):
        super().__init__()

class Rows:
    def __init__(self, count=12):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.ones(1 + index % 3), index
"""


class PlainLoader:
    """A loader of the user's own that is no dataclass."""

    reads_samples = True
    honours = ("collate",)

    def __init__(self, store):
        self.store = store

    @contextmanager
    def open(self, prepared, plan):
        yield None


@dataclass(frozen=True, kw_only=True)
class StrictLoader:
    """A loader that refuses to be without a store."""

    store: object
    reads_samples = True
    honours = ()

    def __post_init__(self):
        if self.store is None:
            raise LookupError("it needs a store")

    @contextmanager
    def open(self, prepared, plan):
        yield None


def request_of(folder, text, *overrides):
    """The request of a command line with experiment=own, which is that text."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "own.yaml").write_text("# @package _global_\n" + text)
    line = read_command_line(["-cd", str(folder), "experiment=own", *overrides])
    (combination,) = compose_combinations(line)
    return build_request(combination)


@pytest.mark.parametrize("kind", [PlainLoader, StrictLoader])
def test_loader_that_has_no_form_without_its_store_keeps_it(kind):
    job = compose_job("loader=fastloop", "store@loader.store=npy", *CLIPS, "benchmark=traversal")
    loader = kind(store=job.loader.store)
    assert without_store(loader) is None
    own = replace(job, loader=loader)
    assert choose_store(own, ()).loader is loader
    text = replace(own, collate=compose_job("collate._target_=my_code.drop_missing").collate)
    if kind is StrictLoader:
        with pytest.raises(Unsupported, match="no such setting; loader=raw"):
            check_support(replace(text, dataset=compose_job().dataset))


@pytest.mark.parametrize(
    ("text", "overrides", "kwargs"),
    [
        ("model:\n  _target_: my_code.HiddenNet\n", (), {}),
        ("model:\n  _target_: my_code.HiddenNet\n", ("model.hidden=512",), {"hidden": 512}),
        ("model:\n  _target_: my_code.HiddenNet\n  hidden: 512\n", (), {"hidden": 512}),
        ("model:\n  hidden: 64\n", (HIDDEN,), {"hidden": 64}),
        ("model:\n  hidden: 512\n", (HIDDEN,), {"hidden": 512}),
        ("batch_size: 16\n", (HIDDEN,), {}),
    ],
)
def test_own_model_gets_what_a_file_or_an_override_sets(tmp_path, text, overrides, kwargs):
    request = request_of(tmp_path, text, *overrides)
    model: Any = request.job.model
    assert model.kwargs == kwargs
    assert {*request.config["model"]} == {"_target_", *kwargs}
    # the same job by the way that caches configurations
    assert compose_job("-cd", str(tmp_path), "experiment=own", *overrides).model.kwargs == kwargs


@pytest.mark.heavy
def test_sweep_of_an_own_model_reads_once_what_files_set_beside_it(tmp_path, monkeypatch):
    composed, listed = [], []
    compose, list_defaults = hydra.compose, ConfigLoaderImpl.compute_defaults_list

    def count(name, overrides, **others):
        composed.append("~model" in overrides)
        return compose(name, overrides, **others)

    def count_lists(*arguments):
        listed.append(True)
        return list_defaults(*arguments)

    monkeypatch.setattr(hydra, "compose", count)
    monkeypatch.setattr(ConfigLoaderImpl, "compute_defaults_list", count_lists)
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "own.yaml"
    words = ("-m", HIDDEN, "experiment=own", "batch_size=1,2,3")
    line = read_command_line(["-cd", str(tmp_path), *words])
    # The file may be changed between two commands of one process, as in a notebook.
    for text, kept in (("model:\n  hidden: 512\n", {"hidden": 512}), ("epochs: 2\n", {})):
        file.write_text(f"# @package _global_\n{text}")
        composed.clear()
        listed.clear()
        jobs = compose_combinations(line)
        assert [each.values["batch_size"] for each in jobs] == [1, 2, 3]
        node = {"_target_": HIDDEN.partition("=")[2], **kept}
        assert all(each.values["model"] == node for each in jobs)
        assert (sum(composed), len(listed)) == (1, 1)


@pytest.mark.heavy
def test_plus_plus_adds_an_argument_to_own_code_that_a_file_names(tmp_path):
    """Other datasets have such settings as well, but this one has them only by ++."""
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndataset:\n  _target_: my_code.Rooted\n"
    (tmp_path / "experiment" / "own.yaml").write_text(text)
    own = ["-cd", str(tmp_path), "experiment=own"]
    line = read_command_line([*own, "-m", "++dataset.root=a,b", "++dataset.count=3"])
    nodes = [each.values["dataset"] for each in compose_combinations(line)]
    assert [(node["root"], node["count"]) for node in nodes] == [("a", 3), ("b", 3)]


CHOSEN = "defaults:\n  - override /model: toynet\n"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "overrides", "kwargs"),
    [
        (CHOSEN, (WIDTH,), {}),
        (CHOSEN, (WIDTH, "model.width=4"), {"width": 4}),
        ("batch_size: 16\n", ("model=toynet", WIDTH), {}),
        ("batch_size: 16\n", (WIDTH, "model=toynet"), {}),
        # It may be meant, as the parameter has this name.
        (CHOSEN, (HIDDEN,), {"hidden": 512}),
    ],
)
def test_own_model_in_the_place_of_a_chosen_one_gets_no_argument_that_it_lacks(
    tmp_path, text, overrides, kwargs
):
    model: Any = request_of(tmp_path, text, *overrides).job.model
    assert model.kwargs == kwargs
    assert compose_job("-cd", str(tmp_path), "experiment=own", *overrides).model == model


def test_argument_that_an_own_model_lacks_is_refused_if_it_is_typed(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.hidden=512: .* has no argument hidden"):
        request_of(tmp_path, CHOSEN, WIDTH, "model.hidden=512")


@pytest.mark.heavy
@pytest.mark.parametrize("overrides", [(HIDDEN,), (HIDDEN, "model.hidden=512")])
def test_written_experiment_has_the_model_that_was_measured(tmp_path, overrides):
    text = experiment_yaml(overrides, "?")
    assert text is not None
    assert request_of(tmp_path, text).job.model == compose_job(*overrides).model


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "overrides", "kwargs"),
    [
        ("batch_size: 16\n", (), {}),
        ("batch_size: 16\n", ("model.hidden=512",), {"hidden": 512}),
        ("model:\n  hidden: 512\n", (), {"hidden": 512}),
    ],
)
def test_model_of_any_arguments_gets_those_that_equal_the_default(
    tmp_path, text, overrides, kwargs
):
    own = "model._target_=my_code.AnyNet"
    model: Any = request_of(tmp_path, text, own, *overrides).job.model
    assert model.kwargs == kwargs
    assert compose_job("-cd", str(tmp_path), "experiment=own", own, *overrides).model == model


def test_required_argument_of_a_model_is_asked_for():
    own = "model._target_=my_code.WideNet"
    message = r"^model\.hidden: my_code\.WideNet has no default for it; add model\.hidden=<value>$"
    with pytest.raises(ConfigError, match=message):
        compose_job(own)
    assert compose_job(own, "model.hidden=4").model.kwargs == {"hidden": 4}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "overrides", "placement"),
    [
        ("defaults:\n- override /collate: pad\n", (), "recursive"),
        ("defaults:\n- override /collate: pad\n", ("placement=direct",), "direct"),
        ("defaults:\n- override /collate: pad\n", ("placement.non_blocking=true",), "direct"),
        ("defaults:\n- override /placement: direct\n", ("collate=pad",), "direct"),
        ("defaults:\n- override /placement: direct\n- override /collate: pad\n", (), "direct"),
        ("batch_size: 16\n", ("collate=pad",), "recursive"),
    ],
)
def test_placement_that_an_experiment_chooses_stays(tmp_path, text, overrides, placement):
    request = request_of(tmp_path, text, CLIPS[0], *overrides)
    assert request.choices["placement"] == placement
    assert type(request.job.placement).__name__ == f"{placement.title()}Placement"
    job = compose_job("-cd", str(tmp_path), "experiment=own", CLIPS[0], *overrides)
    assert job.placement == request.job.placement


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("dataset=mine.Rows", "dataset.count=12"), {"_target_": "mine.Rows", "count": 12}),
        (("dataset=mine.Rows",), {"_target_": "mine.Rows"}),
        (("collate=pad", "dataset=mine.Rows"), "recursive.RecursivePlacement"),
        (("model=mine.Net",), {"_target_": "mine.Net"}),
        (("model=mine.Net", "model.hidden=512"), {"_target_": "mine.Net", "hidden": 512}),
    ],
)
def test_shown_configuration_is_that_of_the_job(tmp_path, words, shown):
    (tmp_path / "mine.py").write_text(ROWS)
    process = run_fastloop(*words, "--cfg", "job", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    composed = yaml.safe_load(process.stdout)
    if isinstance(shown, str):
        assert composed["placement"]["_target_"].endswith(shown)
    else:
        assert composed[words[0].partition("=")[0]] == shown


@pytest.mark.heavy
@pytest.mark.parametrize("info", ["config", "all"])
def test_info_shows_the_configuration_that_cfg_shows(tmp_path, info):
    (tmp_path / "mine.py").write_text(ROWS)
    words = ("model=mine.Net", "dataset=mine.Rows", "dataset.count=12", "collate=pad")
    shown = run_fastloop(*words, "--cfg", "job", cwd=tmp_path).stdout
    process = run_fastloop(*words, "--info", info, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith(f"\n{shown}\n")
    for head in ("Config search path", "Defaults Tree", "Defaults List"):
        assert f"\n{head}\n****" in process.stdout


@pytest.mark.heavy
def test_shown_part_of_a_configuration_is_resolved(tmp_path):
    (tmp_path / "own.yaml").write_text("defaults: [config, _self_]\nepochs: ${batch_size}\n")
    line = ("-cd", str(tmp_path), "-cn", "own", "batch_size=7", "--cfg", "job")
    assert "epochs: ${batch_size}" in run_fastloop(*line, cwd=tmp_path).stdout
    assert "epochs: 7" in run_fastloop(*line, "--resolve", cwd=tmp_path).stdout
    placement = run_fastloop(*line, "-p", "placement", cwd=tmp_path).stdout
    assert placement.startswith("# @package placement\n_target_: fastloop.")
    assert run_fastloop(*line, "-p", "baseline", cwd=tmp_path).stdout == "null\n"
    nothing = run_fastloop(*line, "-p", "nope", cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == "--package=nope: the configuration has no such part\n"
    hydra = run_fastloop(*line, "--cfg", "hydra", cwd=tmp_path).stdout
    assert yaml.safe_load(hydra)["hydra"]["runtime"]["choices"]["placement"] == "direct"


@pytest.mark.heavy
def test_arguments_of_own_code_reach_the_jobs_of_a_hydra_launcher(tmp_path):
    require_library("hydra_plugins.hydra_joblib_launcher")
    (tmp_path / "mine.py").write_text(ROWS)
    line = ["-m", "dataset=mine.Rows", "dataset.count=12,6", "collate=pad", "benchmark=traversal"]
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "allow_concurrent=true"]
    process = run_fastloop(*line, *joblib, "trials=1", "min_window_s=0", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    found = [yaml.safe_load(each.read_text()) for each in tmp_path.rglob("result.json")]
    assert {each["num_samples"] for each in found} == {6, 12}


def test_configuration_that_hydra_has_composed_is_fitted_alike():
    node = {"_target_": "my_code.HiddenNet"}
    others = {group: {"_target_": group} for group in ("dataset", "loader", "collate", "transform")}
    fitted = {**others, "model": node, "placement": {"_target_": "b"}}
    composed = fitted | {"model": node | {"hidden": 512}, "placement": {"_target_": "a"}}
    assert copy_removals(composed, fitted) == fitted


@pytest.mark.heavy
def test_reading_without_a_store_is_told(tmp_path):
    (tmp_path / "mine.py").write_text(ROWS)
    line = ["-m", "loader=raw,fastloop", "dataset=mine.Rows", "collate=pad", "benchmark=traversal"]
    told = run_fastloop(*line, "trials=1", "min_window_s=0", cwd=tmp_path)
    assert told.returncode == 0
    assert told.stderr.count("loader=fastloop reads the samples: no store fits collate=pad\n") == 1
    kept = compose_job("loader=fastloop", *CLIPS, "benchmark=traversal", "loader.in_memory=true")
    assert kept.loader.store is not None
    with pytest.raises(Unsupported, match=r"^store=npy: it holds samples of one length"):
        check_support(kept)
