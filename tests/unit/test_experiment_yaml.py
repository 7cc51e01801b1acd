"""Overrides written as an experiment's file, and read again by Hydra."""

from __future__ import annotations

import pytest
from commands import run_fastloop

from fastloop.config.write_experiment import experiment_yaml

OVERRIDES = [
    "dataset=synthetic",
    "+dataset.note='a, b: {c}'",
    "loader=np_memmap",
    "order=sequential",
    "batch_size=16",
    "prefetch_factor=null",
    "model._target_=torch.nn.Identity",
    "seed=-1",
]


DECODED = ["dataset=photos", "decoder=turbojpeg", "dataset.count=16"]
"""An option of a group of which jobs have no option by default."""


@pytest.mark.heavy
@pytest.mark.parametrize("overrides", [OVERRIDES, DECODED])
def test_file_makes_the_same_job(tmp_path, overrides):
    text = experiment_yaml(overrides, "Is it the same?")
    assert text is not None
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "best.yaml").write_text(text)
    lines = [overrides, ["-cd", str(tmp_path), "experiment=best"]]
    composed = [run_fastloop(*line, "--cfg", "job", cwd=tmp_path) for line in lines]
    assert [process.stderr for process in composed] == ["", ""]
    assert composed[0].stdout == composed[1].stdout
    assert overrides[1].partition("=")[2] in text


@pytest.mark.parametrize(
    "override", ["~dataset.note", "loader=raw,preload", "experiment=quickstart", "hydra.mode=RUN"]
)
def test_what_a_file_cannot_hold_makes_none(override):
    assert experiment_yaml([*OVERRIDES, override], "?") is None
