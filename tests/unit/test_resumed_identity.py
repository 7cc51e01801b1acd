"""The earlier result that a resumed job continues: one of the same settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from known_results import result_of

from fastloop.config.compose import compose_requests
from fastloop.core.result_io import save
from fastloop.sweep.job_identity import config_hash
from fastloop.sweep.resume import with_earlier_results
from fastloop.sweep.sweep_job import SweepJob

CODE = """
import torch

def make(batch_size, trials=1, root="data"):
    return [(torch.zeros(batch_size, trials), torch.zeros(batch_size))]
"""
OWN = "loader._target_=own_settings.make"


@pytest.fixture
def hash_of(tmp_path, monkeypatch):
    """A function that returns the hash of the job of these overrides."""
    (tmp_path / "own_settings.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    # The command line is read again for flags such as -cd.
    monkeypatch.setattr("sys.argv", ["fastloop"])

    def hash_of(*overrides: str) -> str:
        (request,) = compose_requests([overrides], tmp_path)
        return config_hash(request)

    return hash_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([OWN, "+loader.trials=2"], [OWN, "+loader.trials=3"]),
        ([OWN, "+loader.root=a"], [OWN, "+loader.root=b"]),
        (["loader=np_memmap"], ["loader=np_memmap", "loader.store.root=/dev/shm/stores"]),
        (["dataset=mydataset", "dataset.root=a"], ["dataset=mydataset", "dataset.root=b"]),
    ],
)
def test_a_setting_that_is_named_like_one_of_a_sweep_tells_jobs_apart(hash_of, one, other):
    assert hash_of(*one) != hash_of(*other)


def test_number_of_trials_and_place_of_outputs_do_not_tell_jobs_apart(hash_of, monkeypatch):
    job = ("loader=np_memmap", "dataset=mydataset")
    before = hash_of(*job, "trials=2", "trial_timeout_s=5")
    monkeypatch.setenv("FASTLOOP_OUTPUTS", "elsewhere")
    assert hash_of(*job, "trials=3") == before


def test_jobs_of_one_hash_continue_their_results_in_the_order_of_their_folders(tmp_path):
    known = replace(result_of([], samples=10, limit=100.0), tags={"config_hash": "same"})
    numbers = [11, 2, 7, 5, 3, 10, 9, 0, 8, 6, 1, 4]
    for number in numbers:
        save(known, tmp_path / str(number))
    entries = [
        SweepJob(
            index=index,
            job=SimpleNamespace(),
            launcher=SimpleNamespace(),
            folder=Path(),
            config_yaml="",
            result=known,
        )
        for index in range(len(numbers))
    ]
    continued = with_earlier_results(entries, tmp_path)
    assert [entry.folder.name for entry in continued] == [*map(str, sorted(numbers))]
