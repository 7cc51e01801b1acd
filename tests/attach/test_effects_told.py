"""Effects of a script that are told before it runs again."""

from __future__ import annotations

import os
import subprocess
import sys

from fastloop.explain.attach import effects
from fastloop.explain.attach.effects import (
    DESCRIBED,
    SYSTEM_FOLDERS,
    EffectPaths,
    ask_for_effects,
    find_home,
)


def test_file_that_is_written_and_renamed_is_told_by_its_last_name():
    """As a checkpoint is written; both names lie outside of the working folder."""
    paths = EffectPaths("/home/ann", SYSTEM_FOLDERS)
    lines = DESCRIBED["os.rename"](paths, "/data/last.pt.tmp", "/data/last.pt", -1, -1)
    assert lines == "removes /data/last.pt.tmp\nwrites /data/last.pt"
    assert DESCRIBED["os.rename"](paths, f"{os.devnull}/a", f"{os.devnull}/b", -1, -1) == ""


def test_files_are_told_from_the_folder_of_the_command(tmp_path, monkeypatch):
    """As of a script that changes its working folder, which Hydra does."""
    records, run = tmp_path / "records", tmp_path / "run"
    records.mkdir()
    run.mkdir()
    monkeypatch.chdir(tmp_path)
    ask_for_effects(records)
    monkeypatch.chdir(run)
    paths = EffectPaths(find_home(records), SYSTEM_FOLDERS)
    assert DESCRIBED["open"](paths, "metrics.csv", "w", os.O_WRONLY) == "writes run/metrics.csv"
    assert find_home(run) == os.getcwd(), "nobody has asked there"


def test_redirected_output_is_no_file_that_the_script_writes(tmp_path):
    """As of `fastloop attach --try train.py > log.txt 2>&1`."""
    program = (
        "from pathlib import Path\n"
        "from fastloop.explain.attach.effects import read_effects, read_files\n"
        "before = read_files(Path())\n"
        "Path('losses.txt').write_text('0.5')\n"
        "print('a line of output', flush=True)\n"
        "lines = read_effects(Path(), before, read_files(Path()))\n"
        "assert lines == ['writes losses.txt'], lines\n"
    )
    with (tmp_path / "log.txt").open("w") as log:
        command = [sys.executable, "-c", program]
        subprocess.run(command, cwd=tmp_path, stdout=log, stderr=log, timeout=120, check=False)
    assert (tmp_path / "log.txt").read_text() == "a line of output\n"


def test_own_files_are_none_that_the_script_writes(tmp_path, monkeypatch):
    """FASTLOOP_OUTPUTS may be a folder of the script's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTLOOP_OUTPUTS", "results")
    before = effects.read_files(tmp_path)
    for name in ("results/attach/train-1/attach.html", "results/losses.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("0.5")
    after = effects.read_files(tmp_path)
    assert effects.read_effects(tmp_path, before, after) == ["writes results/losses.txt"]


def test_a_search_for_the_temporary_folder_ends_while_effects_are_recorded(tmp_path):
    """The search holds a lock while it opens a file, of which the hook is told."""
    program = f"""
import pathlib, tempfile
from fastloop.explain.attach.effects import record_effects
record_effects(pathlib.Path({str(tmp_path)!r}))
tempfile.tempdir = None
tempfile.gettempdir()
pathlib.Path(tempfile.gettempdir(), "fastloop-effect").touch()
pathlib.Path("effect").touch()
"""
    folder = tmp_path / "work"
    folder.mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    lines = [path.read_text() for path in tmp_path.glob("effects-*.txt")]
    assert lines == ["writes effect\n"]
