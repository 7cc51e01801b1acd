"""`explain=true`: one sweep that is killed while it explains, resumed, and looked at."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
from html import unescape
from pathlib import Path

import pytest
from commands import results, run_fastloop, runs, start_fastloop
from options import SUPPORT

from fastloop.core.result_io import load
from fastloop.core.tracked_metrics import metrics

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.nightly]

SWEEP = (
    *(
        "-m",
        "loader=raw,index_loop",
        "dataset._target_=slow_stages.Samples",
        "+dataset.sleep_s=0.004",
    ),
    "model._target_=slow_stages.SlowNet",
    "+model.sleep_s=0.004",
    "batch_size=16",
    "benchmark=training",
    "torch_threads=1",
    "trials=1",
    "epochs=1",
    "min_window_s=0",
    "explain=true",
    "try=1",
    "isolation=inline",
)
PARTS = ("step", "copy", "start-up", "hand-off", "collate", "decode")


def job_folders(cwd: Path) -> list[Path]:
    return sorted(cwd.glob("outputs/20*/*/[01]"))


def explained(cwd: Path) -> list[Path]:
    """The folders of the jobs that have been explained."""
    return [path for path in job_folders(cwd) if (path / "explain.json").exists()]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, empty_database):
    """(folder, the first explain.json's time at the kill and after resuming, finished process)."""
    folder = tmp_path_factory.mktemp("explained")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    shutil.copy(SUPPORT / "slow_stages.py", folder)
    command = start_fastloop(*SWEEP, cwd=folder)
    command.wait_until(lambda: any(result.explanation for result in results(folder)))
    command.process.send_signal(signal.SIGKILL)
    command.wait()
    (first, *_) = explained(folder)
    before = (first / "explain.json").stat().st_mtime_ns
    process = run_fastloop(*SWEEP, "resume=last", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder, (before, (first / "explain.json").stat().st_mtime_ns), process


def test_resuming_repeats_no_explanation(sweep):
    folder, (before, after), _ = sweep
    assert before == after
    assert explained(folder) == job_folders(folder)


def test_result_and_file_hold_the_same_explanation(sweep):
    for folder in job_folders(sweep[0]):
        result, file = load(folder), json.loads((folder / "explain.json").read_text())
        stored = json.loads((folder / "result.json").read_text())["explanation"]
        assert result.explanation is not None
        assert stored == {name: value for name, value in file.items() if name != "schema"}
        assert stored["verdict"]["word"] == result.explanation.verdict.word
        assert result.status == "FINISHED"
    raw = load(job_folders(sweep[0])[0]).explanation
    assert raw is not None
    assert [str(row.rung) for row in raw.ladder.rows] == list(PARTS)
    assert any(each.realised_gain is not None for each in raw.what_ifs)
    for each in raw.what_ifs:
        assert "resume=" not in each.command
        assert "explain=" not in each.command


def check_mlflow(folder):
    """Each job has a run with the metrics, the verdict and the files of its explanation."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/outputs/mlflow.db")
    by_name = {run.info.run_name: run for run in runs(folder)}
    assert len(by_name) == 2
    for result in results(folder):
        run, explanation = by_name[result.name], result.explanation
        assert explanation is not None
        logged = {k: v for k, v in run.data.metrics.items() if k.startswith("explain/")}
        assert logged == {k: v for k, v in metrics(result).items() if k.startswith("explain/")}
        assert logged["explain/ceiling_seconds"] == explanation.ladder.perfect_s.value
        assert logged["explain/exposed_wait_fraction"] == explanation.ladder.wait_share.value
        rows = {f"explain/{row.rung}_fraction": row.share.value for row in explanation.ladder.rows}
        assert rows.items() <= logged.items()
        tried = [each.realised_gain.value for each in explanation.what_ifs if each.realised_gain]
        best = explanation.best.realised_gain.value if explanation.best else None
        assert logged.get("explain/realised_gain") in ([best] if best else tried[:1] or [None])
        assert run.data.tags["verdict"] == explanation.verdict.word
        artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert {"config.yaml", "result.json", "explain.json"} <= artifacts
        assert {"timeline.svg", "timeline.json"} <= artifacts


def test_mlflow_has_metrics_verdict_and_files(sweep):
    check_mlflow(sweep[0])


def test_explanations_are_logged_again_to_a_new_database(sweep, empty_database, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(sweep[0], folder, ignore=shutil.ignore_patterns("mlartifacts", "stores"))
    shutil.copy(empty_database, folder / "outputs")
    (sweep_folder,) = folder.glob("outputs/20*/*")
    process = run_fastloop(str(sweep_folder), cwd=folder, command="log")
    assert process.returncode == 0, process.stderr
    check_mlflow(folder)


def test_table_and_report_say_why(sweep):
    folder, _, process = sweep
    assert re.search(r" rank +limit +why$", process.stdout, re.M), process.stdout
    (sweep_folder,) = folder.glob("outputs/20*/*")
    text = (sweep_folder / "report" / "report.md").read_text()
    page = (sweep_folder / "report" / "report.html").read_text()
    with (sweep_folder / "report" / "report.csv").open() as file:
        words = {row["loader"]: row["why"] for row in csv.DictReader(file)}
    for result in results(folder):
        assert result.explanation is not None
        word = result.explanation.verdict.word
        assert words[result.loader] == word
        assert f"**Why, {result.loader}: {word}.**" in text
        assert re.search(rf"^{result.loader} .*% {word}$", process.stdout, re.M), process.stdout
        assert f"Why, {result.loader}: {word}.</strong>" in page
        assert unescape(page).count(result.explanation.verdict.sentences[0]) == 1
    assert text.index("**Why, raw") < text.index("**Training.**") < text.index("(explained.png)")
    assert page.count("data:image/svg+xml;base64,") == len(results(folder))
    assert "Timeline, raw</h2>" in page
    assert (sweep_folder / "report" / "explained.png").exists()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:3] == ["Parts of an epoch", "What if", "Training: ranking"]
    assert "Ladder" in headings


def test_what_cannot_be_explained_is_a_caveat(tmp_path):
    shutil.copy(SUPPORT / "my_code.py", tmp_path)
    settings = ("benchmark=traversal", "trials=1", "epochs=1", "tracker=none", "report=false")
    arguments = ("loader._target_=my_code.plain", "min_window_s=0", *settings, "explain=true")
    process = run_fastloop(*arguments, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (result,) = results(tmp_path)
    assert result.status == "FINISHED"
    assert result.explanation is None
    (caveat,) = [line for line in result.caveats if line.startswith("not explained: ")]
    assert "brings its own data" in caveat
    assert "brings its own data" in " ".join(process.stdout.split())
