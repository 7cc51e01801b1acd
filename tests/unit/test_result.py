"""Results on disk: files that older versions wrote are still read; figures of CPU time."""

from dataclasses import replace

import pytest
from known_results import result_of

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.result import Attribution, Result
from fastloop.core.result_io import RESULT_FILE, load, load_results, save
from fastloop.core.tracked_metrics import metrics


def test_result_is_read_under_former_field_names(tmp_path):
    attribution = Attribution(
        seconds=1.0, first_batch_s=0.5, wait_s=[], place_s=[], cpu_s=1.0, local_step_s=0.25
    )
    result = Result(
        name="raw mydataset",
        loader="raw",
        dataset="mydataset",
        params={},
        tags={},
        decoder_equivalence_id="abc",
        caveats=["drift: +6 % over rounds"],
        attribution={"training": attribution},
    )
    save(result, tmp_path)
    text = (tmp_path / RESULT_FILE).read_text()
    assert '"flags":' in text  # the file's name for caveats
    for name, former in (("decoder_equivalence_id", "alike"), ("local_step_s", "own_step_s")):
        assert f'"{name}":' in text
        text = text.replace(f'"{name}":', f'"{former}":')
    (tmp_path / RESULT_FILE).write_text(text)
    assert load(tmp_path) == result


@pytest.mark.parametrize(
    "password", ["data", "dataset", "seconds", "1000", "FINISHED", "raw photos"]
)
def test_a_password_that_is_a_common_word_leaves_a_result_as_it_is(tmp_path, monkeypatch, password):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    result = replace(
        result_of([1.0, 1.1], samples=1000, limit=2000),
        name="raw photos",
        status="FINISHED",
        params={"dataset": "data", "count": 1000},
        status_reason=f"ValueError: {password}",
    )
    save(result, tmp_path)
    assert load(tmp_path) == replace(result, status_reason="ValueError: ***")


def test_results_are_read_from_a_folder_of_any_name(tmp_path):
    result = result_of([1.0], samples=10, limit=100.0)
    for number in range(12):
        save(replace(result, name=f"job {number}"), tmp_path / "1²2" / str(number))
    names = [each.name for each in load_results(tmp_path, "folder")]
    assert names == [f"job {number}" for number in range(12)]


SHORT = Attribution(seconds=0.00046, first_batch_s=0.1, wait_s=[0.0], place_s=[0.0], cpu_s=0.01)


@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({}, None),  # one step of the clock, of an older version: 21.7 cores
        ({"cpu_window_s": 0.9 * LEAST_SECONDS}, None),
        ({"cpu_s": 0.3, "cpu_window_s": 0.4, "usable_cores": 2.0}, 0.75),
        ({"cpu_s": 0.9, "cpu_window_s": 0.4, "usable_cores": 2.0}, 2.0),
        ({"seconds": 0.4, "cpu_s": 0.9}, 2.0),  # older: its usable cores are the environment's
    ],
)
def test_cores_rest_on_enough_time_and_are_at_most_the_usable_ones(changes, cores):
    result = result_of([1.0], samples=10, limit=100.0)
    result = replace(
        result,
        environment={"cores_usable": 2},
        attribution={"traversal": replace(SHORT, **changes)},
    )
    assert metrics(result).get("traversal/cpu_cores") == (cores and pytest.approx(cores))
