"""Runs of a script in a copy of the working folder: what it names by its path is in the copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from fastloop.explain.attach.cut_plan import read_cut, write_cut
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.script_runner import ScriptRunner, _place_in_folder

COPY = Path("/copies/mine")


@dataclass
class FoundLoop:
    """A loop's findings, as far as a further run needs them."""

    facts: dict[str, str]
    batches: int = 4
    passes: int = 1
    seconds: float = 1.0
    ranks: None = None


def read_back(cut, folder):
    write_cut(folder, cut)
    return read_cut(folder)


@pytest.mark.parametrize(
    "argument",
    ["{here}", "{here}/train.py", "--out={here}", "--out={here}/runs", "model.out={here}/a=b"],
)
def test_paths_into_the_working_folder_lead_into_its_copy(tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    given = argument.format(here=tmp_path.resolve())
    assert _place_in_folder(given, COPY) == argument.format(here=COPY)


@pytest.mark.parametrize("argument", ["runs", "--out=runs", "/elsewhere/a", "{here}-old/a", "-x"])
def test_other_arguments_stay(tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    given = argument.format(here=tmp_path.resolve())
    assert _place_in_folder(given, COPY) == given


def test_name_of_the_working_folder_may_be_a_link(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert _place_in_folder(f"--out={tmp_path}/link/runs", COPY) == "--out=/copies/mine/runs"
    monkeypatch.setenv("PWD", "")
    assert _place_in_folder("/elsewhere/a", COPY) == "/elsewhere/a"


def test_loader_of_a_package_that_is_installed_from_the_folder_is_found(tmp_path, monkeypatch):
    """As by `pip install -e .`: in the copy, too, its modules come from the original."""
    monkeypatch.chdir(tmp_path)
    facts = {"place": "train.py:9", "made_at": f"{tmp_path.resolve()}/mine/data.py:3"}
    found = cast("LoopFindings", FoundLoop(facts=facts))
    cut = ScriptRunner(["train.py"], found, 2, COPY).cut
    assert cut.made_at == ("/copies/mine/mine/data.py:3", facts["made_at"])
    assert read_back(cut, tmp_path) == cut
