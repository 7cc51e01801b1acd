"""The compare command: known differences between real results, and rejected arguments."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run_fastloop, spawn_fastloop
from sweep_results import LOADERS, set_seconds, sweep_folder

from fastloop.reporting.comparison import ratio_of_medians

pytestmark = pytest.mark.slow
EQUAL_SECONDS = dict.fromkeys(LOADERS, 1.0)


@pytest.fixture
def folders(measured_sweep, tmp_path):
    """Folders base and new with equal results; each trial takes about one second."""
    for name in ("base", "new"):
        shutil.copytree(sweep_folder(measured_sweep), tmp_path / name)
        set_seconds(tmp_path / name, EQUAL_SECONDS)
    return tmp_path / "base", tmp_path / "new"


def compare(folders, *arguments: str):
    folder = folders[0].parent
    return run_fastloop("base=base", "new=new", *arguments, cwd=folder, command="compare")


def marks_of(text: str) -> list[str]:
    """The last words of the rows that have a ratio."""
    return [line.split()[-1] for line in text.splitlines() if re.search(r"\d to \d", line)]


def edit(folder: Path, loader: str, change) -> None:
    """Apply the change to the content of that loader's finished result."""
    for path in folder.rglob("result.json"):
        content = json.loads(path.read_text())
        if content["loader"] == loader and content["trials"]:
            change(content)
            path.write_text(json.dumps(content))


@pytest.mark.heavy
def test_equal_results_are_no_regression_and_fit_80_columns(folders):
    process = spawn_fastloop("base=base", "new=new", cwd=folders[0].parent, command="compare")
    assert process.returncode == 0, process.stderr
    assert "SLOWER" not in process.stdout
    assert all(f"{loader} mydataset" in process.stdout for loader in LOADERS)
    assert r"not compared: raw mydataset device=cuda\:99: skipped: device=cuda:99" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 80
    if sys.platform == "linux":
        # If all of its trials are shorter than 0.2 s, a set does not tell whether it was quiet.
        sentence = r"^(\w+): (?:The machine was|It is unknown whether the machine was)"
        assert re.findall(sentence, process.stdout, re.M) == ["base", "new"]
        assert process.stdout.startswith("base: ")


@pytest.mark.parametrize(
    ("factor", "arguments", "status"),
    [(1.2, [], 1), (1.2, ["fail_above=30"], 0), (1.03, [], 0), (1.03, ["fail_above=2"], 1)],
)
def test_regression_beyond_noise_and_limit_fails(folders, factor, arguments, status):
    for seconds, folder in zip((1.0, factor), folders, strict=True):
        set_seconds(folder, EQUAL_SECONDS | {"raw": seconds}, jitter=0.001)
    process = compare(folders, *arguments)
    assert process.returncode == status, process.stdout + process.stderr
    marks = marks_of(process.stdout)
    assert marks.count("SLOWER") == 2 * status
    assert marks.count("slower") == 2 * (1 - status)
    answer = "raw mydataset device=cpu has become slower:" if status else "No job has become slower"
    assert answer in " ".join(process.stdout.split())
    rows = [line for line in process.stdout.splitlines() if line.startswith("raw mydataset")]
    assert any(f"{factor:.3f}" in row for row in rows)


def test_difference_within_noise_is_no_regression(folders):
    for shift, folder in zip((1.0, 1.1), folders, strict=True):
        set_seconds(folder, dict.fromkeys(LOADERS, shift), jitter=0.3)
    assert compare(folders, "fail_above=0").returncode == 0


def test_too_few_trials_are_reported(folders):
    for folder in folders:
        edit(folder, "raw", lambda content: content.update(trials=content["trials"][:3]))
    set_seconds(folders[1], EQUAL_SECONDS | {"raw": 9.0})
    process = compare(folders)
    assert process.returncode == 0
    assert process.stdout.count("too few trials") == 2
    assert "are not judged: each set needs 5 trials or more" in " ".join(process.stdout.split())


def test_faster_job_is_reported(folders):
    set_seconds(folders[1], EQUAL_SECONDS | {"raw": 0.5})
    process = compare(folders)
    assert process.returncode == 0
    assert marks_of(process.stdout).count("faster") == 2


def test_job_that_no_longer_finishes_fails_the_comparison(folders):
    changes = {"status": "FAILED", "status_reason": "invalid: labels"}
    edit(folders[1], "raw", lambda content: content.update(changes))
    process = compare(folders)
    assert process.returncode == 1
    assert "raw mydataset device=cpu no longer finishes. " in " ".join(process.stdout.split())
    assert "NO LONGER FINISHES: raw mydataset device=cpu: base FINISHED" in process.stdout


def test_jobs_in_one_set_only_are_named(folders):
    for path in folders[1].rglob("result.json"):
        path.write_text(path.read_text().replace("np_memmap mydataset", "newer mydataset"))
    process = compare(folders)
    assert process.returncode == 0, process.stderr
    assert "only in base: np_memmap mydataset device=cpu" in process.stdout
    assert "only in new: newer mydataset device=cpu" in process.stdout


@pytest.mark.parametrize(
    ("kind", "section", "value"),
    [
        ("machine", "environment", {"host": "elsewhere"}),
        ("machine", "environment", {"cores_usable": 96}),
        ("versions", "environment", {"python": "3.99"}),
        ("data", "params", {"epochs": 4}),
        ("cache", "params", {"cache": "cold"}),
    ],
)
def test_compare_rejects_different_conditions_unless_allowed(folders, kind, section, value):
    (other,) = value.values()
    for folder in folders:
        edit(folder, "raw", lambda content: content["params"].update(cache="warm"))
    edit(folders[1], "raw", lambda content: content[section].update(value))
    process = compare(folders)
    assert process.returncode == 2
    assert len(process.stderr.splitlines()) == 1
    assert process.stderr.startswith("raw mydataset device=cpu: different ")
    assert str(other) in process.stderr
    assert f"allow={kind}" in process.stderr
    assert process.stdout == ""
    allowed = compare(folders, f"allow={kind}")
    assert allowed.returncode == 0, allowed.stderr
    assert "raw mydataset" in allowed.stdout


def test_compare_rejects_other_libraries_and_data_but_not_other_fastloop(folders):
    edit(folders[1], "raw", lambda content: content["environment"]["versions"].update(fastloop="9"))
    assert compare(folders).returncode == 0
    edit(folders[1], "raw", lambda content: content["environment"]["versions"].update(torch="9.9"))
    process = compare(folders)
    assert process.returncode == 2
    assert "different torch" in process.stderr
    edit(folders[1], "raw", lambda content: content.update(fingerprint="other"))
    assert compare(folders, "allow=versions").returncode == 0  # different files with equal samples
    edit(folders[1], "raw", lambda content: content.update(content="other"))
    process = compare(folders, "allow=versions")
    assert process.returncode == 2
    assert "different data content" in process.stderr
    assert compare(folders, "allow=versions,data").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fail_above=much"], "fail_above=much: allowed: a percentage, 0 or more"),
        (["fail_above=nan"], "fail_above=nan: allowed: a percentage, 0 or more"),
        (["allow=luck"], "allow=luck: no such difference: luck; allowed: machine,versions,data"),
        (["here", "there"], "compare here there: allowed: two folders, the base first"),
        (["bananas=3"], "bananas=3: no such setting; allowed: base=…, new=…, fail_above=…"),
        (["new=nowhere"], "new=nowhere: new= is given twice; allowed: once"),
    ],
)
def test_compare_rejects_wrong_arguments_in_one_line(folders, arguments, message):
    process = compare(folders, *arguments)
    assert process.returncode == 2
    assert process.stderr.startswith(message)
    assert len(process.stderr.splitlines()) == 1


def test_noise_is_rarely_reported_as_a_regression():
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(100):
        base, new = np.exp(rng.normal(0, 0.1, (2, 8)))
        ratio = ratio_of_medians(new, base)
        alarms += ratio is not None and ratio.low > 1
    assert alarms <= 7  # 2.5 are expected; more than 7 happens for about one of 200 seeds
