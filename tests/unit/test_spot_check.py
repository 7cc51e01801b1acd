"""A look at a few samples finds what preparing would find after reading them all."""

from __future__ import annotations

import pytest
from options import compose_job
from PIL import Image

from fastloop.core.types import BadData, TimeLimit
from fastloop.sweep.early_check import check_model_input, check_samples, check_within


@pytest.fixture
def folder(tmp_path):
    """A folder of 40 images of one class."""
    (tmp_path / "cat").mkdir()
    for index in range(40):
        Image.new("RGB", (8, 6)).save(tmp_path / "cat" / f"{index:02}.png")
    return tmp_path


def image_folder(folder, *overrides: str):
    return compose_job("dataset=image_folder", f"dataset.root={folder}", *overrides).dataset


def test_spot_check_accepts_samples_of_one_shape_and_writes_nothing(folder, outputs):
    check_samples(image_folder(folder))
    assert not outputs.exists()


def test_spot_check_names_samples_that_differ_and_the_remedy(folder):
    Image.new("RGB", (9, 6)).save(folder / "cat" / "39.png")
    with pytest.raises(
        BadData, match=r"^samples differ: .*transform=random_resized_crop.*dataset\.size=\[6,6\]"
    ):
        check_samples(image_folder(folder))
    check_samples(image_folder(folder, "dataset.size=[6,8]"))


def test_spot_check_tolerates_a_broken_file_only_where_preparing_does(folder):
    (folder / "cat" / "00.png").write_bytes(b"broken")
    with pytest.raises(BadData, match=r"00\.png"):
        check_samples(image_folder(folder))
    check_samples(image_folder(folder), tolerant=True)


def test_spot_check_names_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(BadData, match=r"^dataset\.root=.*nope: no such file or folder; "):
        check_samples(image_folder(tmp_path / "nope"))


def training_job(dataset: str, *overrides: str):
    return compose_job(f"dataset._target_=my_code.{dataset}", "benchmark=training", *overrides)


def test_samples_that_hang_are_stopped():
    job = training_job("HangingSamples", "trial_timeout_s=0.2")
    checks = (lambda: check_model_input(job), lambda: check_within(0.2, job.dataset))
    for check in checks:
        with pytest.raises(TimeLimit, match=r"^preparing .*: no progress within 0.2 s: .*/threadi"):
            check()


def test_model_input_is_the_first_sample_that_holds_no_none():
    check_model_input(training_job("FirstHoldsNone", "collate=skip_broken"))


def test_model_input_is_checked_after_a_transform_only_on_the_cpu():
    words = ("transform._target_=my_code.needs_gpu", "+transform.where=device", "device=cpu")
    job = training_job("Squares", *words)
    with pytest.raises(BadData, match="not on a GPU"):
        check_model_input(job)
    # torch has this device on every machine, but no setting names it.
    object.__setattr__(job, "device", "meta")
    check_model_input(job)
