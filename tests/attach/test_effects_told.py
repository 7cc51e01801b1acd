"""Effects of a script that are told before it runs again."""

from __future__ import annotations

import os

from fastloop.explain.attach import effects
from fastloop.explain.attach.effects import DESCRIBED, ask_for_effects, find_home


def test_file_that_is_written_and_renamed_is_told_by_its_last_name():
    """As a checkpoint is written; both names lie outside of the working folder."""
    lines = DESCRIBED["os.rename"]("/data/last.pt.tmp", "/data/last.pt", -1, -1)
    assert lines == "removes /data/last.pt.tmp\nwrites /data/last.pt"
    assert DESCRIBED["os.rename"](f"{os.devnull}/a", f"{os.devnull}/b", -1, -1) == ""


def test_files_are_told_from_the_folder_of_the_command(tmp_path, monkeypatch):
    """As of a script that changes its working folder, which Hydra does."""
    records, run = tmp_path / "records", tmp_path / "run"
    records.mkdir()
    run.mkdir()
    monkeypatch.chdir(tmp_path)
    ask_for_effects(records)
    monkeypatch.chdir(run)
    monkeypatch.setattr(effects, "_home", [find_home(records)])
    assert DESCRIBED["open"]("metrics.csv", "w", os.O_WRONLY) == "writes run/metrics.csv"
    assert find_home(run) == os.getcwd(), "nobody has asked there"
