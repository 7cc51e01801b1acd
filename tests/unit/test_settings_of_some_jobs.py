"""A setting applies to the jobs of a sweep whose option has it."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest
from commands import results, run_fastloop
from options import require_library

from fastloop.config.compose import compose_all, compose_job
from fastloop.core.types import Unsupported
from fastloop.sweep.request import JobRequest
from fastloop.trial.support import check_support


@pytest.fixture
def compose(monkeypatch):
    """A function that composes the jobs of a command line."""

    def composed(line: str) -> list[JobRequest]:
        monkeypatch.setattr(sys, "argv", ["fastloop run", *line.split()])
        return compose_all(lambda _: 1)

    return composed


@pytest.mark.parametrize(
    ("choices", "setting", "option"),
    [
        ("loader=raw,fastloop", "loader.store=null", "loader=fastloop"),
        ("loader=raw,fastloop", "loader.num_threads=2", "loader=fastloop"),
        ("loader=hdf5,np_memmap", "loader.store.chunk_rows=1", "loader=hdf5"),
        ("loader=raw,fastloop", "store@loader.store=hdf5", "loader=fastloop"),
        ("dataset=digits,synthetic", "dataset.count=1000", "dataset=synthetic"),
        ("order=random,blocks", "order.block_size=64", "order=blocks"),
        ("transform=none,normalize", "transform.where=device", "transform=normalize"),
        ("collate=default,pad", "collate.value=1", "collate=pad"),
        ("model=toynet,resnet18", "model.hidden=64", "model=toynet"),
    ],
)
def test_setting_applies_to_the_jobs_that_have_it_and_a_line_says_to_how_many(
    compose, capsys, choices, setting, option
):
    requests = compose(f"-m {choices} {setting}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{setting} concerns 1 of 2 jobs: {option}"
    assert [setting in each.overrides for each in requests].count(True) == 1
    (having,) = [each for each in requests if setting in each.overrides]
    assert option in having.overrides
    assert [each.folder.name for each in requests] == ["0", "1"]


def test_setting_with_two_plus_signs_applies_to_the_jobs_that_have_it(compose, capsys):
    requests = compose("-m loader=raw,fastloop ++loader.store=null")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "loader.store=null concerns 1 of 2 jobs: loader=fastloop"
    assert ["loader.store=null" in each.overrides for each in requests] == [False, True]


def test_two_plus_signs_add_an_argument_to_the_users_own_option(
    compose, tmp_path, monkeypatch, capsys
):
    """Options of conf/ have a setting of that name, too."""
    code = "class Squares:\n    def __init__(self, **given): ...\n"
    (tmp_path / "plus_signs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "conf" / "dataset"
    folder.mkdir(parents=True)
    (folder / "squares.yaml").write_text("_target_: plus_signs.Squares\n")
    requests = compose(f"-cd {tmp_path}/conf -m dataset=digits,squares ++dataset.count=5")
    assert [each.config["dataset"].get("count") for each in requests] == [None, 5]
    assert capsys.readouterr().err == "dataset.count concerns 1 of 2 jobs\n"


@pytest.mark.heavy
def test_jobs_that_differ_only_in_a_setting_that_they_lack_are_one(compose, capsys):
    requests = compose("-m order=random,blocks order.block_size=32,64")
    assert [each.overrides for each in requests] == [
        ("order=random",),
        ("order=blocks", "order.block_size=32"),
        ("order=blocks", "order.block_size=64"),
    ]
    assert [each.folder.name for each in requests] == ["0", "1", "2"]
    assert capsys.readouterr().err == "order.block_size concerns 2 of 3 jobs: order=blocks\n"


@pytest.mark.heavy
def test_jobs_that_were_typed_twice_are_one(compose, capsys):
    requests = compose("-m loader=raw,raw,fastloop batch_size=8,8,4 loader.num_threads=2,2")
    assert [each.overrides for each in requests] == [
        ("loader=raw", "batch_size=8"),
        ("loader=raw", "batch_size=4"),
        ("loader=fastloop", "batch_size=8", "loader.num_threads=2"),
        ("loader=fastloop", "batch_size=4", "loader.num_threads=2"),
    ]
    assert [each.folder.name for each in requests] == ["0", "1", "2", "3"]
    line = capsys.readouterr().err
    assert line == "loader.num_threads=2 concerns 2 of 4 jobs: loader=fastloop\n"


def test_job_that_was_typed_twice_is_refused_with_a_launcher_that_runs_it_twice(compose, capsys):
    require_library("hydra_plugins.hydra_joblib_launcher")
    with pytest.raises(SystemExit) as raised:
        compose("-m batch_size=8,8,4 hydra/launcher=joblib allow_concurrent=true")
    assert raised.value.code == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("hydra/launcher=joblib: batch_size=8 ")
    assert "allowed: " in error


def test_setting_that_all_jobs_have_is_not_mentioned(compose, capsys):
    requests = compose("-m loader=fastloop,spdl loader.num_threads=1,2")
    assert len(requests) == 4
    assert capsys.readouterr().err == ""


def test_values_of_an_experiment_apply_to_the_options_that_have_them(compose, capsys):
    """experiment=decoders sets dataset.count in its file."""
    requests = compose("-m experiment=decoders dataset=photos,image_folder decoder=pil")
    counts = [each.config["dataset"].get("count") for each in requests]
    assert counts == [1000, None]
    assert capsys.readouterr().err == "dataset.count concerns 1 of 2 jobs\n"


def test_setting_for_the_loaders_that_an_experiment_sweeps_over(compose, capsys):
    requests = compose("experiment=storage loader.store.chunk_rows=2")
    having = [each for each in requests if "loader.store.chunk_rows=2" in each.overrides]
    assert 0 < len(having) < len(requests)
    count = f"{len(having)} of {len(requests)} jobs"
    line = capsys.readouterr().err
    assert line == f"loader.store.chunk_rows=2 concerns {count}: loader=hdf5\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "-m loader=raw,np_memmap loader.num_threads=2",
            "loader.num_threads=2: loader=raw has no such setting; allowed with loader=",
        ),
        (
            "loader=np_memmap loader.store.chunk_rows=1",
            "loader.store.chunk_rows=1: loader=np_memmap has no such setting; "
            "allowed with store@loader.store=hdf5",
        ),
        (
            "loader=raw loader.store=null",
            "loader.store=null: loader=raw has no such setting; allowed with loader=batch_sampler,",
        ),
        ("-m loader=raw,fastloop loader.nope=2", "loader.nope=2: there is no such setting"),
        (
            "-m experiment=decoders dataset=image_folder decoder=pil,opencv",
            "experiment=decoders sets dataset.count, which dataset=image_folder does not have",
        ),
    ],
)
def test_setting_that_no_job_has_is_an_error(compose, capsys, line, message):
    with pytest.raises(SystemExit) as raised:
        compose(line)
    assert raised.value.code == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tracker.uri", "tracker.uri=http://host/: there is no such setting; "),
        ("tracker.experiment", "tracker.experiment=http://host/ concerns 1 of 2 jobs"),
    ],
)
def test_setting_of_some_jobs_is_told_without_its_password(compose, capsys, setting, message):
    # The unknown setting ends the command, the known one does not.
    with suppress(SystemExit):
        compose(f"-m tracker=none,mlflow {setting}=http://me:secret@host/")
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith(message)]
    assert "secret" not in "".join(told)


CROPS = ("dataset=photos", "dataset.count=4", "transform=random_resized_crop")


@pytest.mark.parametrize("loader", ["fastloop", "spdl", "grain"])
def test_loader_reads_the_images_themselves_if_a_store_would_repeat_a_crop(compose, loader):
    for_crops, for_rows = (
        compose(f"-m loader=raw,{loader} dataset=photos transform={transform}")[1]
        for transform in ("random_resized_crop", "none")
    )
    assert for_crops.job.loader.store is None
    assert for_crops.config["loader"]["store"] is None
    assert for_rows.job.loader.store is not None
    assert for_rows.config["loader"]["store"]["_target_"]


@pytest.mark.parametrize("store", ["store@loader.store=npy", "loader.store.root=stores"])
def test_store_that_is_asked_for_is_refused_for_random_crops(store):
    job = compose_job("loader=fastloop", store, *CROPS)
    with pytest.raises(Unsupported, match="reads a store, which repeats one draw; loader=raw, "):
        check_support(job)


def test_loader_of_stores_alone_is_refused_for_random_crops():
    with pytest.raises(Unsupported, match="loader=np_memmap reads a store, which repeats one draw"):
        check_support(compose_job("loader=np_memmap", *CROPS))


@pytest.mark.heavy
def test_crops_rank_a_dataloader_against_the_native_ones(tmp_path):
    settings = ("epochs=1", "trials=1", "benchmark=traversal", "tracker=none", "report=false")
    size = ("transform.size=[32,32]", "batch_size=2", "dataset.crop=[64,64]")
    process = run_fastloop("-m", "loader=raw,fastloop", *CROPS, *size, *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [each.status for each in results(tmp_path)] == ["FINISHED", "FINISHED"]
